// Checks the English of the pages that people read, on this machine, without a network.
//
//     node tools/grammar/check.mjs [PAGE...]     prints PAGE:LINE: message, exits with 1 if any
//
// words.txt holds the words of the field that no dictionary has. RULES_OFF names rules that judge
// style, not grammar, or that misread units, indices, relative clauses and British spelling.

import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Dialect, LocalLinter } from "harper.js";
import { binary } from "harper.js/binary";

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = resolve(HERE, "../..");
const RULES_OFF = [
  "CapitalizePersonalPronouns", // the i-th element
  "CompoundNouns", // "file system", "file name"
  "DisjointPrefixes", // "under way"
  "ExpandConfiguration",
  "ExpandControl", // Ctrl-C
  "ExpandMemoryShorthands", // MiB, GB
  "ExpandMinimum",
  "ExpandStandardInputAndOutput",
  "ExpandTimeShorthands", // s, ms, min
  "HavePronoun",
  "ItsContraction",
  "LongSentences", // forty words are its limit; the pages have a lower one
  "MassNouns", // "each opening", "one doubling"
  "MergeWords", // "step s"
  "MissingPreposition",
  "MissingTo",
  "OrthographicConsistency", // DROID, AUTOTUNE, FiLM
  "OutOfDate",
  "Overall", // "over all ranks"
  "OxfordComma",
  "PhrasalVerbAsCompoundNoun",
  "PronounVerbAgreement",
  "QuantifierNumeralConflict", // "some 60"
  "RegularIrregulars",
  "SentenceCapitalization", // sentences that begin with a name such as lerobot or tf.data
  "SingleBe",
  "TheLastDays",
  "ThereToTheir",
  "ToTwoToo",
  "UseTitleCase",
];

/** README, CONTRIBUTING and the pages of docs/ and examples/. */
function pages() {
  const found = ["README.md", "CONTRIBUTING.md"].map((name) => join(ROOT, name));
  for (const folder of ["docs", "examples"]) {
    for (const name of readdirSync(join(ROOT, folder), { recursive: true }).sort()) {
      if (name.endsWith(".md") && !name.includes("_build")) found.push(join(ROOT, folder, name));
    }
  }
  return found;
}

/** The page with code, tables, links' targets and HTML made blank; every line keeps its number. */
function prose(text) {
  const blank = (part) => part.replace(/[^\n]/g, " ");
  return text
    .replace(/^(```|~~~)[\s\S]*?^\1/gm, blank)
    .replace(/<!--[\s\S]*?-->/g, blank)
    .replace(/^\|.*$/gm, blank)
    .replace(/^[ \t]*<[^>\n]*>$/gm, blank)
    .replace(/\b[\w-]+\.md\b/g, "page")
    .replace(/\btf\.data\b/g, "TensorFlow");
}

const linter = new LocalLinter({ binary, dialect: Dialect.British });
await linter.setup();
const rules = await linter.getDefaultLintConfig();
for (const rule of RULES_OFF) {
  if (!(rule in rules)) throw new Error(`harper has no rule ${rule}`);
  rules[rule] = false;
}
await linter.setLintConfig(rules);

const known = new Set(readFileSync(join(HERE, "words.txt"), "utf8").split(/\s+/));
let faults = 0;
const given = process.argv.slice(2).map((name) => resolve(name));
for (const page of given.length ? given : pages()) {
  const text = prose(readFileSync(page, "utf8"));
  for (const [rule, lints] of Object.entries(await linter.organizedLints(text))) {
    for (const lint of lints) {
      const words = lint.get_problem_text();
      if (["SpellCheck", "SplitWords"].includes(rule)) {
        const word = words.toLowerCase().replace(/['’]s$/, "");
        if (known.has(word) || /\d|^.{1,2}$/.test(word)) continue;
      }
      const line = text.slice(0, lint.span().start).split("\n").length;
      const better = lint.suggestions().map((one) => one.get_replacement_text()).slice(0, 3).join(" | ");
      console.log(`${relative(ROOT, page)}:${line}: ${rule}: "${words}": ${lint.message()} [${better}]`);
      faults += 1;
    }
  }
}
process.exit(faults ? 1 : 0);
