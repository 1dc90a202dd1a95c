"""``autoloader plan``: what it says is what a loader would do, and it starts nothing."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import rlds_files
import simplejpeg
from command_lines import Cli
from ended import ran
from rlds_files import image, numbers
from streams import opened, write_spec

from autoloader.controller.profile import HostFacts, Limits, Profile, Provenance
from autoloader.decode.probe import probe_decode
from autoloader.index.counting import count_mixture
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import Knobs

FRAMES = (3, 8, 12, 9)
"""Frames of the four episodes of dataset "arm", two in each shard."""


SPEC = """
datasets:
  - {name: arm, path: arm/1.0.0, weight: 3, images: {primary: image}, action: "action[:6]"}
  - {name: hand, path: hand/1.0.0, images: {primary: image}, sample: {edges: {end: drop}}}
sample: {frame_offsets: [0, 4]}
cameras: {primary: {size: [16, 16]}}
batch: {size: 4}
"""


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec over two small datasets whose lengths nobody has counted yet; no profile is saved."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    picture = simplejpeg.encode_jpeg(np.full((32, 32, 3), 90, np.uint8), 90)
    features = {"image": image(32, 32), "action": numbers(7), "is_first": numbers(dtype="bool")}
    arm = [
        {"image": [picture] * steps, "action": [0.0] * 7 * steps, "is_first": [True] * steps}
        for steps in FRAMES
    ]
    for name in ("arm", "hand"):
        rlds_files.write_dataset(tmp_path, [arm[:2], arm[2:]], name=name, features=features)
    path = tmp_path / "mix.yaml"
    path.write_text(SPEC)
    return path


def plan_json(mix: Path, cli: Cli, *sets: str) -> dict[str, Any]:
    words = [word for one in sets for word in ("--set", one)]
    return cli.json("plan", "--spec", mix, "--ram-floor", "64MiB", *words)


@pytest.fixture
def planned(mix: Path, cli: Cli) -> dict[str, Any]:
    """The document of a plan of the stream reader, the episodes' lengths counted before."""
    count_mixture(resolve(PipelineSpec.from_yaml(mix)))
    return plan_json(mix, cli, "queue_samples=24", "knobs.reader=stream")


def test_what_rules_leave_out_is_told_rule_by_rule(tmp_path: Path, cli: Cli):
    task = {"episode_metadata/task": rlds_files.TEXT}
    names = (b"pour", b"fold", b"pour")
    records = [
        rlds_files.episode(number, 5, **{"episode_metadata/task": [name]})
        for number, name in enumerate(names)
    ]
    rlds_files.write_dataset(tmp_path, [records], features={**rlds_files.PLAIN, **task})
    path = tmp_path / "mix.yaml"
    path.write_text(
        "datasets: [{name: robot, path: robot/1.0.0, images: {primary: observation/image},\n"
        "  keep: {match: {episode_metadata/task: pour}, ranges: {file: keep.json,"
        ' key: "{episode_metadata/task}"}}}]\n'
        "cameras: {primary: {size: [12, 16]}}\n"
    )
    (tmp_path / "keep.json").write_text('{"pour": [[1, 4]]}')
    robot = plan_json(path, cli)["datasets"]["robot"]
    assert (robot["samples"], robot["estimated"]) == (15, True)
    assert robot["lost"] == ["what the rules of keep leave out is known when the index is built"]
    cli("index", "--spec", path, "--json")
    robot = plan_json(path, cli)["datasets"]["robot"]
    assert (robot["samples"], robot["estimated"]) == (6, False)
    assert robot["lost"] == [
        "keep.match.episode_metadata/task leaves out 5 samples, and 1 of 3 episodes whole",
        "keep.ranges leaves out 4 samples, and 0 of 3 episodes whole",
    ]


def test_what_steps_take_away_is_told_and_rules_that_leave_nothing_out_are_not(
    tmp_path: Path, cli: Cli
):
    rlds_files.write_dataset(tmp_path, [[rlds_files.episode(number, 5) for number in range(3)]])
    path = tmp_path / "mix.yaml"
    path.write_text(
        "datasets: [{name: robot, path: robot/1.0.0, images: {primary: observation/image},\n"
        "  language: language_instruction, steps: {drop_first: 1, drop_last: 1},\n"
        "  keep: {language: anywhere}}]\n"
        "cameras: {primary: {size: [12, 16]}}\nbatch: {size: 16}\n"
    )
    cli("index", "--spec", path, "--json")
    told = plan_json(path, cli)
    assert told["datasets"]["robot"]["samples"] == 9
    lost = ["steps.drop_first and drop_last leave out 6 of 15 frames"]
    assert told["datasets"]["robot"]["lost"] == lost
    assert told["batch"]["language"] == {"shape": [16], "dtype": "str"}
    first, *_, last = cli("plan", path).out.splitlines()
    assert first.startswith(
        "Fits   no: the first epoch gives no batch: it has 9 samples, and a batch"
    )
    assert last.startswith("Next   lower batch.size, set batch.drop_last: false")


def test_the_graph_names_every_stage_with_its_knobs(planned: dict[str, Any], mix: Path, cli: Cli):
    assert "queue 24 samples" in planned["graph"]["datasets"]["arm"]
    assert "→ decode (" in planned["graph"]["mixture"]
    assert plan_json(mix, cli)["graph"]["datasets"]["arm"].endswith("→ global shuffle")
    assert "global shuffle" in cli("plan", "-v", mix, "--ram-floor", "64MiB").out


def test_what_gives_no_sample_is_told_with_the_reason(planned: dict[str, Any]):
    hand = planned["datasets"]["hand"]
    kept = sum(max(0, steps - 4) for steps in FRAMES)
    assert hand["samples"] == kept
    assert hand["lost"] == [
        "1 of 4 episodes are too short for a window",
        f"edges: drop leaves out {sum(FRAMES) - kept} of {sum(FRAMES)} frames",
    ]


def test_a_knob_that_the_host_or_mixture_cannot_give_is_told_as_clamped(
    mix: Path, tmp_path: Path, cli: Cli
):
    profile = tmp_path / "wide.yaml"
    profile.write_text(
        "schema_version: 2\nname: wide\nhost: {cpus: 64, memory_bytes: 64GiB}\n"
        "limits: {ram_floor: 64MiB}\nknobs: {cycle_length: 8, num_parallel_calls: 8}\n"
        "provenance: {source: reasoned, detail: test}\n"
    )
    document = cli.json("plan", "--spec", mix, "--profile", profile)
    cycle, calls = (document["knobs"][name] for name in ("cycle_length", "num_parallel_calls"))
    assert (cycle["value"], cycle["from"]) == (2, "profile wide, clamped from 8")
    assert (calls["value"], calls["from"]) == (2, "follows cycle_length=2")
    assert any("no dataset has more than 2 shards" in line for line in document["notes"])


def chained_mix(mix: Path) -> Path:
    """The spec with ``arm`` chained in blocks of two, ``hand`` drawn; all lengths are counted."""
    text = SPEC.replace("edges: {end: drop}", "per_episode: 2")
    mix.write_text(text + "mixing: {chain: true, block_length: 2}\n")
    count_mixture(resolve(PipelineSpec.from_yaml(mix)))
    return mix


def test_which_datasets_chain_and_what_they_decode_is_told(mix: Path, cli: Cli):
    planned = plan_json(chained_mix(mix), cli)
    arm, hand = planned["datasets"]["arm"], planned["datasets"]["hand"]
    runs = 0 + 4 + 4 + 4  # of two, with offsets 0 and 4, in episodes of 3, 8, 12 and 9 frames
    assert (arm["chained"], arm["unchained_why"]) == (True, None)
    assert arm["decodes_per_sample"] == pytest.approx(2 - runs / sum(FRAMES))
    assert hand["chained"] is False
    assert hand["unchained_why"] == "per_episode: 2 draws each t on its own"
    assert hand["decodes_per_sample"] == 2
    reuse = planned["reuse"]
    assert reuse["chain"] is True
    assert reuse["decodes_per_sample"] == pytest.approx(0.75 * arm["decodes_per_sample"] + 0.25 * 2)
    saved = arm["decodes_per_sample"] / 2
    expected = 0.75 * arm["decode_s"] * saved + 0.25 * hand["decode_s"]
    assert planned["bound"]["mean_decode_s"] == pytest.approx(expected)
    assert re.search(
        r"hand +no +per_episode: 2 draws each t on its own",
        cli("plan", "--spec", mix, "--ram-floor", "64MiB", "-v").out,
    )


def with_profile(mix: Path, **knobs: Any) -> str:
    """A profile of these knobs, as ``tune`` would save it for this host."""
    host = HostFacts(cpus=2, memory_bytes=2**33)
    made = Profile(
        schema_version=2,
        name="tuned",
        description="tuned here",
        host=host,
        limits=Limits(ram_floor=64 * 2**20),
        knobs=Knobs.build(knobs),
        provenance=Provenance(source="measured", detail="by a test"),
    )
    path = mix.parent / "tuned.yaml"
    path.write_text(made.to_yaml())
    return str(path)


@pytest.mark.parametrize(
    ("line", "reader", "instead", "why"),
    [
        ("reader: stream", "indexed", "stream", "the spec: reader: stream"),
        ("reader: indexed", "stream", "indexed", "the spec: reader: indexed"),
        ("mixing: {chain: true, block_length: 4}", "stream", "indexed", "mixing.chain"),
        ("mixing: {unit: batch, epoch: forever}", "stream", "indexed", "mixing.unit: batch"),
        ("reader: stream", "stream", "stream", None),
        ("mixing: {strategy: sample}", "indexed", "indexed", None),
        ("mixing: {strategy: choose}", "stream", "stream", None),
    ],
)
def test_what_a_profile_says_gives_way_to_the_spec_with_a_note(
    mix: Path, cli: Cli, line: str, reader: str, instead: str, why: str | None
):
    mix.write_text(SPEC + line + "\n")
    words = ["plan", "--spec", str(mix), "--profile", with_profile(mix, reader=reader), "--json"]
    document = json.loads(cli(*words).out)
    assert {entry["reader"] for entry in document["datasets"].values()} == {instead}
    told = [note for note in document["notes"] if "of the profile gives way" in note]
    assert len(told) == (why is not None)
    assert all(why in note for note in told)


def test_five_answers_have_at_most_fourteen_lines_of_whole_words_at_any_width(
    mix: Path, warm_python: Path
):
    mix.write_text(SPEC + "mixing: {chain: true, block_length: 2, locality: {block: 1MiB}}\n")
    words = ["plan", mix.name, "--ram-floor", "64MiB", "--ranks", "4", "--nodes", "2"]
    words += ["--profile", Path(with_profile(mix, cycle_length=8, reader="stream")).name]

    def said(columns: int, colour: str) -> tuple[str, str]:
        env = {**os.environ, "LC_ALL": "C", "COLUMNS": str(columns), colour: "1"}
        done = ran(warm_python, "-m", "autoloader", *words, cwd=mix.parent, env=env)
        return done.stdout, done.stderr

    numbers = re.compile(r"\d[\d.]*")  # measured anew
    whole = {numbers.sub("0", word) for word in said(1000, "NO_COLOR")[0].split()}
    for width, colour in ((60, "NO_COLOR"), (80, "FORCE_COLOR"), (120, "NO_COLOR")):
        answers, notes = said(width, colour)
        lines = (answers + notes).splitlines()
        assert 6 <= len(lines) <= 14
        labels = [line[:6].rstrip() for line in answers.splitlines() if line[:1].isalpha()]
        assert [one for one in labels if one != "Ranks"] == [
            "Fits", "Speed", "Limit", "Data", "Next",
        ]  # fmt: skip
        assert max(map(len, lines)) <= width
        assert "\x1b" not in "".join(lines)
        assert {numbers.sub("0", word) for word in answers.split()} <= whole | {"..."}


def test_a_rank_gets_what_its_loader_then_has(tmp_path: Path, cli: Cli):
    shards = [[rlds_files.episode(3 * shard + n, 6 + n) for n in range(3)] for shard in range(2)]
    shards.append([rlds_files.episode(6, 9), rlds_files.episode(7, 10)])
    path = write_spec(tmp_path, rlds_files.write_dataset(tmp_path, shards))
    cli("index", "--spec", path, "--json")
    words = ["plan", "--spec", str(path), "--ram-floor", "64MiB", "--json"]
    document = json.loads(cli(*words, "--ranks", "4", "--nodes", "2").out)
    found = document["ranks"]
    assert (found["world_size"], found["nodes"], found["per_node"]) == (4, 2, 2)
    with opened(path, rank=3, world_size=4) as loader:
        assert found["rank"]["batches"] == document["epoch"]["batches"] == len(loader)
        assert found["rank"]["samples"] == sum(len(batch["action"]) for batch in loader)
    assert found["carried_samples"] == document["epoch"]["samples"] - 4 * found["rank"]["samples"]
    assert found["node"]["samples"] == 2 * found["rank"]["samples"]


def test_decoding_is_priced_in_processor_seconds_of_several_samples(tmp_path: Path):
    class Late:
        """A machine whose processors others use: a second passes between two looks."""

        at_s = 0.0

        def now_s(self) -> float:
            self.at_s += 1.0
            return self.at_s

    path = write_spec(tmp_path, rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 12)]]))
    mixture = resolve(PipelineSpec.from_yaml(path), "train")
    (cost,) = probe_decode(mixture, Late(), budget_s=1000.0).values()
    assert cost.samples == 127, "the first of 128 warms up"
    assert cost.decode_s < 0.5
    assert probe_decode(mixture, Late(), budget_s=5.0)[mixture.names[0]].samples < 5
