"""Specs that nobody meant: whatever a file holds, ``plan`` ends in order and says what to do.

The mutations are drawn from a seed. The suite draws few; AUTOLOADER_HOSTILE_SPECS=200 draws more,
and AUTOLOADER_HOSTILE_SEED another lot.
"""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rlds_files
from ruamel.yaml import YAML

from autoloader.cli.app import main
from autoloader.spec.sample import matcher

COUNT = int(os.environ.get("AUTOLOADER_HOSTILE_SPECS", "20"))
SEED = int(os.environ.get("AUTOLOADER_HOSTILE_SEED", "0"))
WAIT_S = 10.0
"""Processor seconds within which a spec is planned or refused."""

BASE = """\
schema_version: 1
seed: 3
reader: auto
defaults: {data_dir: data, split: {train: train}}
datasets:
  - name: arm
    path: arm/robot/1.0.0
    weight: 2.5
    images: {primary: observation/image}
    action: [action, {path: "observation/state[:1]", ops: [{clip: [0, 1]}, invert]}, {zeros: 1}]
    state: observation/state
    language: language_instruction
    stride: 1
    sample: {frame_offsets: [0, 1], per_episode: all}
    keep: {language: required, match: {language_instruction: "episode [0-3]"}}
  - {name: hand, path: hand/robot/1.0.0, images: {primary: {any_of: [observation/image]}}}
weights: explicit
sample: {frame_offsets: [0, 1], action_horizon: 2, edges: {start: repeat, end: repeat}, goal: none}
cameras: {primary: {size: [8, 8], resize: bilinear, fit: stretch}}
normalize: {state: {method: mean_std}}
pad_to: {action: 7, state: 4}
augment: {primary: {random_resized_crop: {scale: [0.8, 1.0]}, brightness: 0.1}}
batch: {size: 4, drop_last: true}
metadata: full
mixing: {strategy: python, block_length: 2, on_stall: auto, epoch: pass, chain: true}
errors: {max_corrupt_ratio: 0.01}
validation: {samples: 16, per_dataset: false}
"""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**6, 10**8, 10**12, 2**31, 2**63, 10**30, -(10**30)),
    *(0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), 0.5),
    *("", " ", ".", "..", "/", "~nobody/x", "x" * 5_000, "a/" * 3_000, "0" * 300, "\x1b[31mred"),
    *("action[5:900]", "action[::-1]", "action[", "[:]", "é" * 200, "\u202eabc", "__main__:f"),
    *("gs://", "no-such://bucket/x", "os:system", "train[:1%]", "train[5:2]", "all", "pass"),
    *((a := []), [[]], {}, {"": ""}, {"a": {"b": {"c": {}}}}, [1, 2], ["action"] * 500, [None]),
    *({"zeros": 10**9}, {"any_of": []}, {"path": "action", "ops": [{"scale": 1e308}] * 3}, [[[1]]]),
)
TEXTS = (
    "&a", "*a", "<<: *a", "- ", "? ", "!!binary ", "!!python/name:os.system ", "\t", "%", "\x00",
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value lies in a document."""
    if not isinstance(value, (dict, list)):
        return [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


def replaced(draw: random.Random, plain: dict[str, Any]) -> str:
    """The document as JSON, which is YAML, with a few of its values replaced, dropped or moved."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        *above, key = draw.choice(places(plain)[1:])
        holder: Any = plain
        for step in above:
            holder = holder[step]
        other = draw.choice(places(plain))
        value: Any = plain
        for step in other:
            value = value[step]
        change = draw.choice(("value", "value", "value", "drop", "copy", "rename"))
        if change == "drop":
            del holder[key]
        elif change == "rename" and isinstance(holder, dict):
            holder[draw.choice(("naem", "\x1b]0;x\x07", "x" * 20_000, "1", key + "s"))] = (
                holder.pop(key)
            )
        else:
            holder[key] = (
                draw.choice(VALUES) if change == "value" else json.loads(json.dumps(value))
            )
    return json.dumps(plain)


def garbled(draw: random.Random, text: str) -> str:
    """The text with pieces cut, repeated, swapped or put in."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        start, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        end = min(end, start + draw.choice((1, 10, 200)))
        piece = draw.choice(
            (text[start:end] * 2, "", *TEXTS, text[end:start:-1], "{[" * 30, "9" * 5000)
        )
        text = text[:start] + piece + text[end:]
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small datasets, "arm" and "hand"."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("arm", "hand"):
        records = [[rlds_files.episode(2 * file + one, 5) for one in range(2)] for file in range(2)]
        rlds_files.write_dataset(folder / name, records)
    return folder


@pytest.fixture
def ends(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[bytes | str], dict[str, Any]]:
    """Plans a spec's text, checks that it ends in order, and gives the document."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))

    def plan(text: bytes | str) -> dict[str, Any]:
        spec = folder / "mix.yaml"
        spec.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return ends_in_order(["plan", "--spec", str(spec), "--ram-floor", "64MiB", "--json"], capfd)

    return plan


def ends_in_order(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Runs a command with ``--json``: its document, which says what to do where it is an error."""
    begun = time.process_time()
    code = main(words)
    took_s = time.process_time() - begun
    said = capfd.readouterr()
    assert code in (0, 2, 3, 4), said.err
    assert "Traceback" not in said.err
    assert len(said.err) < 10_000
    assert all(line.isprintable() for line in said.err.split("\n"))
    assert took_s < WAIT_S
    document: dict[str, Any] = json.loads(said.out)
    assert (code == 0) == ("error" not in document)
    if code:
        assert document["error"]["exit_code"] == code
        assert document["error"]["what"]
        assert document["error"]["remedy"]
    return document


def test_the_spec_that_is_mutated_is_a_good_one(ends: Callable[[str], dict[str, Any]]):
    assert set(ends(BASE)["datasets"]) == {"arm", "hand"}


@pytest.mark.parametrize("number", range(COUNT))
def test_a_mutated_spec_is_planned_or_refused(ends: Callable[[str], dict[str, Any]], number: int):
    draw = random.Random(f"{SEED} {number}")
    if draw.random() < 0.3:
        ends(garbled(draw, BASE))
    else:
        ends(replaced(draw, YAML(typ="safe", pure=True).load(BASE)))


def repeating(first: str, around: str, *, times: int = 9, levels: int = 12) -> str:
    """A few lines that hold ``times`` to the power of ``levels`` values by their aliases."""
    lines = [f"l0: &l0 {first}"]
    for level in range(1, levels):
        repeated = ", ".join([f"*l{level - 1}"] * times)
        lines.append(f"l{level}: &l{level} {around.replace('…', repeated)}")
    return "\n".join(lines)


def but(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


NAMED = {
    "a stride of 10¹²": (but("stride: 1", "stride: 1000000000000"), "datasets[arm].stride"),
    "a width of 10⁸": (but("{action: 7, ", "{action: 100000000, "), "pad_to.action"),
    "10¹² columns of zeros": (but("{zeros: 1}", "{zeros: 1000000000000}"), "10000"),
    "a path of 5,000 characters": (but("arm/robot", "x" * 5000), "datasets[arm].path"),
    "a name of 300 characters": (but("arm/robot", "x" * 300), "File name too long"),
    "an alias of itself": ("a: &a [*a]", "by an alias"),
    "a merge of itself": ("a: &a {<<: *a}", "&a contains itself"),
    "deep lists": ("a: " + "[" * 200 + "]" * 200, "deeper than 64"),
    "deep mappings": ("".join(" " * n + "a:\n" for n in range(500)), "deeper than 64"),
    "deep aliases": (
        "\n".join(f"a{n}: &a{n} [*a{n - 1}]" if n else "a0: &a0 [1]" for n in range(99)),
        "deeper than 64",
    ),
    "a bomb of lists": (repeating("[1]", "[…]"), "50000 values"),
    "a bomb of merges": (repeating("{x: 1}", "{<<: […]}"), "50000 values"),
    "a comment of 10 MB": ("# " + "x" * 10_000_000, "262144"),
    "a number of 5,000 digits": ("seed: " + "9" * 5000, "it is too long"),
    "a date that is none": ("seed: 2024-13-45", "line 1: 'seed: 2024-13-45' has a date or number"),
    "a list as a key": ("? [a, {b: 1}]\n: 1", "line 1: '? [a, {b: 1}]' has a list"),
    "a tag that builds": ("a: !!python/object/apply:os.system [ls]", "not YAML"),
    "bytes that are no text": (b"seed: \xff\xfe", "not UTF-8"),
    "a NUL byte": (b"seed: \x00", "line 1: it holds the character"),
    "nothing": ("", "is empty"),
    "half a file": (
        BASE[: BASE.index("]") - 1],
        "ends in the middle of a key or value, in line 10",
    ),
    "half a key": (BASE[: BASE.index("images") + 3], "ends in the middle"),
    "a pattern that looks ahead": (but("episode [0-3]", "(?!x)"), "look-around"),
    "a pattern too large": (but("episode [0-3]", "a{999}{999}{999}"), "when compiled"),
    "a name that a terminal obeys": (but("name: arm", 'name: "\\e]0;x\\a"'), "\\x1b]0;x\\x07"),
    "a name of 20 kB": (but("name: arm", f"name: {'x' * 20_000}"), "xxx…xxx"),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_spec_that_once_broke_it_is_refused_by_name(
    ends: Callable[[bytes | str], dict[str, Any]], case: str
):
    text, told = NAMED[case]
    assert told in ends(text)["error"]["what"]


def test_a_pattern_takes_the_time_of_its_text_and_no_more():
    assert not matcher("(a+)+$")("a" * 100_000 + "b")
    assert matcher("(a|a)*b")("a" * 100_000 + "b")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("pipe", "named pipe"),
        ("directory", "directory"),
        ("/dev/zero", "device"),
        ("broken link", "No such file"),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, told: str
):
    place = tmp_path / "mix.yaml"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    elif kind == "broken link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place = Path(kind)
    for words in (
        ["plan", "--spec", str(place)],
        ["profile", "show", f"{place.parent}/{place.name}"],
    ):
        assert told in ends_in_order([*words, "--json"], capfd)["error"]["what"]
