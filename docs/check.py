"""Holds README.md and docs/ against the code: generated tables, links, commands, the example spec.

    python docs/check.py            says what is wrong, and exits with 1
    python docs/check.py --write    writes the generated tables anew first

Tables stand between ``<!-- generated: KIND NAME -->`` and ``<!-- end -->``.

Not here: what the words mean; descriptions come from the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from api_tables import arguments_table, members_table, names_table
from code_blocks import faults_of_code
from pydantic import BaseModel

from autoloader.cli.app import app
from autoloader.cli.plan import knob_range
from autoloader.controller.states import TRANSITIONS, Event, State
from autoloader.errors import AutoloaderError
from autoloader.spec import PipelineSpec
from autoloader.spec.block import Block
from autoloader.spec.knobs import KNOBS, Knobs
from autoloader.telemetry.metrics import METRICS

COMMANDS: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ROOT = Path(__file__).resolve().parent.parent
_TABLE = re.compile(r"<!-- generated: (\w+) ?([\w ]*) -->\n.*?<!-- end -->", re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENDLESS = 2**62
# ``autoloader.tune`` is a command too; other names with a dot are modules, that people import.
_COMMAND = re.compile(r"(?:^|[`\s])autoloader(?:\.(?=tune\b)| )([a-z]+)\b")
_VERB = re.compile(r"`make ([a-z-]+)")


def pages() -> list[Path]:
    """Every page that people read."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    written = (page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
    return [*top, *sorted((ROOT / "examples").glob("*.md")), *sorted(written)]


def knobs_table(_: str) -> Iterator[tuple[str, ...]]:
    """Every knob, from ``Knobs``."""
    yield ("knob", "range", "default", "class", "per dataset", "meaning")
    for name, field in Knobs.model_fields.items():
        if name in KNOBS:
            own = "yes" if KNOBS[name].own else ""
            default = f"`{field.default}`"
            words = knob_range(name).replace(" | ", ", ")
            yield (f"`{name}`", words, default, KNOBS[name].kind, own, field.description or "")


def spec_table(name: str) -> Iterator[tuple[str, ...]]:
    """The fields of one block of the spec."""
    model: type[BaseModel] = next(one for one in Block.__subclasses__() if one.__name__ == name)
    schema = model.model_json_schema()
    yield ("field", "allowed", "default", "meaning")
    for key, shown in schema["properties"].items():
        field = next(f for n, f in model.model_fields.items() if key in (n, f.alias))
        default = "required" if field.is_required() else _default(field.get_default())
        if field.default_factory is not None:
            default = "all defaults" if _allowed(shown) == "block" else ""
        own = _OWN_WORDS.get(f"{name}.{key}") or _OWN_WORDS.get(key)
        allowed = own or _allowed(shown)
        yield (f"`{key}`", allowed, default, shown.get("description", ""))


def cli_table(name: str) -> Iterator[tuple[str, ...]]:
    """Arguments and options of one command, such as "profile list"."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    yield ("argument", "default", "meaning")
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        label = parameter.metavar or parameter.name.upper()
        if parameter.param_type_name == "option":
            flag = parameter.is_flag or parameter.count
            label = ", ".join(parameter.opts) + ("" if flag else f" {parameter.metavar or ''}")
        default = "required" if parameter.required else _default(parameter.default)
        yield (f"`{label.strip()}`", default, parameter.help or "")


def states_table(_: str) -> Iterator[tuple[str, ...]]:
    """The controller's states and what they mean."""
    yield ("state", "means")
    for state in State:
        yield (f"`{state.value}`", state.meaning)


def transitions_table(_: str) -> Iterator[tuple[str, ...]]:
    """Where each event leads from each state, from the table itself."""
    yield ("event, the first that holds", *(f"from `{state.value}`" for state in State))
    for event in Event:
        ways = (TRANSITIONS[state, event] for state in State)
        yield (f"`{event.value}`: {event.meaning}", *(way.value for way in ways))


def metrics_table(_: str) -> Iterator[tuple[str, ...]]:
    """Every metric, from ``telemetry.metrics``."""
    yield ("name", "unit", "what it is", "what to do about it")
    for metric in METRICS:
        label = f"/{metric.label.upper()}" if metric.label else ""
        counter = ", counter" if metric.counter else ""
        yield (
            f"`{metric.name}{label}`",
            metric.unit + counter,
            metric.meaning,
            metric.advice,
        )


def errors_table(_: str) -> Iterator[tuple[str, ...]]:
    """Every error that a user can meet, from the tree."""
    yield ("error", "is a", "exit code", "means")
    left: list[type[AutoloaderError]] = [AutoloaderError]
    while left:
        error = left.pop()
        kinds = [kind for kind in error.__subclasses__() if kind.__module__ == error.__module__]
        left += reversed(kinds)
        meaning = (error.__doc__ or "").partition("\n")[0].replace("``", "`").rstrip(".")
        bases = (base.__name__ for base in error.__bases__ if base is not Exception)
        parents = ", ".join(f"`{base}`" for base in bases)
        yield (f"`{error.__name__}`", parents, str(error.exit_code), meaning)


_KINDS: dict[str, Callable[[str], Iterator[tuple[str, ...]]]] = {
    "knobs": knobs_table,
    "metrics": metrics_table,
    "spec": spec_table,
    "cli": cli_table,
    "names": names_table,
    "members": members_table,
    "arguments": arguments_table,
    "errors": errors_table,
    "states": states_table,
    "transitions": transitions_table,
}


def diagram() -> str:
    """The controller's states as a Mermaid diagram, drawn from the table.

    An event that leads to one state from everywhere is drawn once, from ``any``.
    """
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> WARMUP"]
    for event in Event:
        ways = {state: TRANSITIONS[state, event] for state in State}
        if len(set(ways.values())) == 1:
            lines.append(f"    any --> {ways[State.WARMUP].value}: {event.value}")
            continue
        for state, to in ways.items():
            if state is not to:
                lines.append(f"    {state.value} --> {to.value}: {event.value}")
    return "\n".join([*lines, "```"])


def written_anew(text: str) -> str:
    """A page's text with its tables as the code has them."""

    def table(match: re.Match[str]) -> str:
        kind, name = match[1], match[2].strip()
        if kind == "diagram":
            return f"<!-- generated: {kind} -->\n{diagram()}\n<!-- end -->"
        head, *rows = (
            tuple(cell.replace("|", "\\|") for cell in row) for row in _KINDS[kind](name)
        )
        lines = [head, ("---",) * len(head), *rows]
        body = "\n".join("| " + " | ".join(row) + " |" for row in lines)
        return f"<!-- generated: {kind}{f' {name}' if name else ''} -->\n{body}\n<!-- end -->"

    return _TABLE.sub(table, text)


def faults() -> list[str]:
    """What is wrong, one line each."""
    commands = set(COMMANDS)
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = []
    for page in pages():
        name = page.relative_to(ROOT)
        text = page.read_text(encoding="utf-8")
        if written_anew(text) != text:
            found.append(f"{name}: a table is out of date: make docs ARGS=--write")
        for link in _LINK.findall(_FENCE.sub("", text)):
            target = link.partition("#")[0]
            if target and "://" not in link and not (page.parent / target).exists():
                found.append(f"{name}: {link} leads nowhere")
        found += [
            f"{name}: there is no command {word!r}"
            for word in sorted(set(_COMMAND.findall(_shell(text))) - commands)
        ]
        found += [
            f"{name}: there is no verb {word!r} in the Makefile"
            for word in sorted(set(_VERB.findall(text)) - verbs)
        ]
        found += [f"{name}: {fault}" for fault in (*_bad_specs(text), *faults_of_code(text))]
    return found


def _shell(text: str) -> str:
    """What a page asks people to type."""
    blocks = [body for kind, body in _FENCE.findall(text) if kind in ("sh", "console")]
    inline = re.findall(r"`autoloader[. ][^`\n]*`", text)
    return "\n".join([*blocks, *inline])


def _bad_specs(text: str) -> Iterator[str]:
    """YAML blocks that look like a whole spec, and are refused."""
    import io

    from ruamel.yaml import YAML

    from autoloader.errors import SpecError

    for kind, body in _FENCE.findall(text):
        if kind != "yaml" or "datasets:" not in body or "cameras:" not in body:
            continue
        try:
            PipelineSpec.from_mapping(YAML(typ="safe").load(io.StringIO(body)))
        except SpecError as error:
            yield f"a spec is refused: {error.what}"


_OWN_WORDS = {
    "NormalizeSpec.action": "block, or null",
    "NormalizeSpec.state": "block, or null",
    "MovingSpec.path": "columns of a feature",
    "BatchSpec.gives": "name → block",
    "PipelineSpec.weights": "`explicit`, `natural`, `natural_scaled`, or a schedule",
    "CurriculumSpec.from": "dataset → number ≥ 0",
    "CurriculumSpec.to": "dataset → number ≥ 0",
    "action": "field expression",
    "state": "field expression",
    "augment": "camera → operations, in order",
    "dims": "columns",
    "kwargs": "name → any value",
    "KeepSpec.language": "`required`, `anywhere`, or null",
    "language": "feature, `{any_of: [...]}`, or either with `names` or `several`",
    "images": "camera → feature, `{any_of: [...]}`, or either with `ops`",
}


def _allowed(shown: dict[str, Any]) -> str:
    """What a JSON schema allows, in a few words."""
    if "$ref" in shown:
        return "block"
    if "const" in shown:
        return f"`{shown['const']}`"
    if "enum" in shown:
        return ", ".join(f"`{word}`" for word in shown["enum"])
    if "anyOf" in shown:
        return ", or ".join(dict.fromkeys(_allowed(one) for one in shown["anyOf"]))
    kind = shown.get("type", "")
    if kind == "array":
        inner = shown.get("items") or shown.get("prefixItems", [{}])[0]
        count = shown.get("maxItems")
        return f"list of {f'{count} ' if count else ''}{_allowed(inner)}"
    if kind == "object":
        values = [shown.get("additionalProperties"), *shown.get("patternProperties", {}).values()]
        inner = next((one for one in values if isinstance(one, dict)), {})
        keys = shown.get("propertyNames", {})
        return f"{_allowed(keys) if 'enum' in keys else 'name'} → {_allowed(inner)}"
    word: str = {"integer": "int", "string": "text", "boolean": "true, false"}.get(kind, kind)
    low = shown.get("minimum", shown.get("exclusiveMinimum"))
    high = shown.get("maximum", shown.get("exclusiveMaximum"))
    if low is None:
        return word
    if high is not None and high < _ENDLESS:
        return f"{word} {low}–{high}"
    return f"{word} {'>' if 'exclusiveMinimum' in shown else '≥'} {low}"


def _default(value: Any) -> str:
    if value is None or value is False or isinstance(value, BaseModel) or callable(value):
        return ""
    if isinstance(value, (list, tuple)):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{'true' if value is True else getattr(value, 'value', value)}`"


def main() -> int:
    """Check, or write and check."""
    if "--write" in sys.argv[1:]:
        for page in pages():
            text = page.read_text(encoding="utf-8")
            if (anew := written_anew(text)) != text:
                page.write_text(anew, encoding="utf-8")
    found = faults()
    for fault in found:
        sys.stderr.write(fault + "\n")
    sys.stdout.write(f"{len(pages())} pages, {len(found)} faults\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
