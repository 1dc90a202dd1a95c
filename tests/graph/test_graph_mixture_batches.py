"""In-graph mixtures give the batches of the python strategy, every sample once a pass."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import rlds_files as files

sys.path.insert(0, str(Path(__file__).parent))

from graph_runs import Run, assert_equal

from autoloader.errors import UsageError
from autoloader.sampling.order import BlockSequence
from autoloader.spec import PipelineSpec


def spec_of(plain: dict[str, Any], **changes: Any) -> PipelineSpec:
    return PipelineSpec.from_mapping({**plain, **changes})


@pytest.fixture(scope="module")
def odd_mixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Datasets that differ in all they may: widths, cameras, words, lengths, encodings."""
    folder = tmp_path_factory.mktemp("odd")
    points = {"words": files.numbers(12, dtype="int64")}
    no_words = {key: value for key, value in files.PLAIN.items() if key != "language_instruction"}
    wide = {**no_words, **points, "observation/other": files.image(10, 20)}

    def of_points(number: int, steps: int) -> dict[str, Any]:
        text = [ord(letter) for letter in f"Öffne {number} 🦾"]
        values = dict(files.episode(number, steps))
        del values["language_instruction"]
        values["words"] = (text + [0] * (12 - len(text))) * steps
        values["observation/other"] = [
            files.jpeg(number + 9, s, height=10, width=20) for s in range(steps)
        ]
        return values

    plain = files.write_dataset(
        folder,
        [[files.episode(10 * s + e, 3 + (7 * e + s) % 9) for e in range(5)] for s in range(3)],
        name="plain",
    )
    pictures = files.write_dataset(
        folder, [[files.episode(e, 4 + 3 * e, encode=files.png) for e in range(4)]], name="pictures"
    )
    pointed = files.write_dataset(
        folder, [[of_points(e, 2 * e + 1) for e in range(6)]], name="pointed", features=wide
    )
    return {
        "seed": 5,
        "datasets": [
            {
                "name": "plain",
                "path": str(plain.path),
                "weight": 3.0,
                "sample": {"action_relative_to_state": [1]},
                "images": {"primary": "observation/image"},
                "action": [
                    "action[1:]",
                    {"path": "action[:1]", "ops": [{"clip": [0, 2]}, "invert"]},
                ],
                "state": "observation/state",
                "language": "language_instruction",
            },
            {
                "name": "pictures",
                "path": str(pictures.path),
                "images": {"wrist": "observation/image"},
                "action": "action",
                "stride": 2,
            },
            {
                "name": "pointed",
                "path": str(pointed.path),
                "images": {
                    "primary": {"any_of": ["observation/image", "observation/other"]},
                    "wrist": "observation/other",
                },
                "state": [{"zeros": 1}, "observation/state[::2]"],
                "language": "words",
                "keep": {"match": {"words": "[1-5]"}},
            },
            {"name": "blind", "path": str(plain.path), "action": "action", "weight": 0.5},
        ],
        "cameras": {
            "primary": {"size": [12, 16], "fit": "pad"},
            "wrist": {"size": [9, 9], "fit": "crop", "resize": "area"},
        },
        "sample": {
            "frame_offsets": [-1, 0, 2],
            "state_offsets": [0, 1],
            "action_horizon": 4,
            "edges": {"start": "zero", "end": "repeat"},
        },
        "batch": {"size": 7},
    }


SAMPLES = {
    "windows over both ends": {},
    "only whole windows, so that short episodes are empty": {
        "sample": {
            "frame_offsets": [0, 3],
            "action_start": -1,
            "action_horizon": 4,
            "action_reduce": "sum",
            "edges": {"start": "drop", "end": "drop"},
        }
    },
    "a goal behind the offsets": {
        "sample": {
            "frame_offsets": [0, 2],
            "goal": "uniform",
            "action_horizon": 3,
        }
    },
    "two drawn samples an episode": {"sample": {"per_episode": 2, "action_horizon": 2}},
}


@pytest.mark.parametrize("changes", SAMPLES.values(), ids=SAMPLES.keys())
def test_choose_gives_every_sample_of_a_pass_with_the_values_of_python(
    odd_mixture: dict[str, Any], changes: dict[str, Any]
) -> None:
    spec = spec_of(odd_mixture, **changes)
    with (
        Run(spec, "python") as python,
        Run(spec, "choose", cycle_length=2, stream_prefetch=0) as choose,
    ):
        python.until_passes(2)
        choose.until_passes(2)
    for pass_ in (0, 1):
        assert_equal(choose.of_pass(pass_), python.of_pass(pass_))
    assert max(Counter(choose.order).values()) == 1


def test_sample_gives_every_sample_of_a_pass_with_the_values_of_python(
    odd_mixture: dict[str, Any],
) -> None:
    spec = spec_of(odd_mixture)
    with Run(spec, "python") as python, Run(spec, "sample") as drawn:
        python.until_passes(1)
        drawn.until_passes(1)
    assert_equal(drawn.of_pass(0), python.of_pass(0))
    assert max(Counter(drawn.order).values()) == 1


def test_kernels_of_the_graph_decode_to_the_pools_frames_within_two_grey_levels(
    odd_mixture: dict[str, Any],
) -> None:
    spec = spec_of(odd_mixture)
    with Run(spec, "python") as python, Run(spec, "choose", decode="graph") as graph:
        python.until_passes(1)
        graph.until_passes(1)
    assert_equal(graph.of_pass(0), python.of_pass(0), grey_levels=2)


@pytest.mark.slow
@pytest.mark.parametrize("decode", ["pool", "graph"])
def test_real_files_give_the_same_batches_in_the_graph(
    demo_spec: PipelineSpec, decode: str
) -> None:
    spec = demo_spec.model_copy(update={"weights": "natural"})
    with Run(spec, "python") as python, Run(spec, "choose", decode=decode) as choose:
        python.until_passes(1)
        choose.until_passes(1)
    wanted = python.of_pass(0)
    assert len(wanted) == sum(python.sizes)
    assert_equal(choose.of_pass(0), wanted, grey_levels=2 if decode == "graph" else 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mixing": {"block_length": 3, "epoch": "forever"}},
        {"weights": "natural", "mixing": {"block_length": 2}},
    ],
    ids=["explicit weights", "passes"],
)
def test_choose_follows_the_schedule_of_the_python_strategy(
    odd_mixture: dict[str, Any], changes: dict[str, Any]
) -> None:
    with Run(spec_of(odd_mixture, **changes), "choose") as run:
        run.take(300)
    sequence = BlockSequence(run.orders)
    due = itertools.chain.from_iterable([d] * n for d, n in map(sequence.block, itertools.count()))
    assert [key[0] for key in run.order] == list(itertools.islice(due, len(run.order)))


@pytest.mark.parametrize("strategy", ["choose", "sample"])
def test_a_resumed_mixture_goes_on_where_the_first_one_stopped(
    odd_mixture: dict[str, Any], strategy: str
) -> None:
    spec = spec_of(odd_mixture, mixing={"block_length": 2})
    with Run(spec, strategy) as whole:
        whole.take(210)
    with Run(spec, strategy) as first:
        first.take(91)
    with Run(spec, strategy, start=first.resumed_at()) as second:
        second.take(119)
    assert first.order + second.order == whole.order
    assert_equal({**first.samples, **second.samples}, whole.samples)


def test_a_retune_keeps_every_sample_of_a_pass_once(odd_mixture: dict[str, Any]) -> None:
    with Run(spec_of(odd_mixture), "choose") as run:
        for number in range(6):
            run.take(len(run.order) + 20)
            knobs = run.knobs.build(
                {"cycle_length": 1 + number % 3, "decode_threads": 1 + number % 2}
            )
            run.pipeline.retune(knobs)
        run.until_passes(3)
        assert run.pipeline.activity().datasets["plain"].generations > 1
    assert max(Counter(run.order).values()) == 1
    for dataset, pass_ in itertools.product(range(len(run.sizes)), range(3)):
        came = [key for key in run.order if key[:2] == (dataset, pass_)]
        assert len(came) == run.sizes[dataset]


def test_batches_are_cut_at_an_epochs_end(odd_mixture: dict[str, Any]) -> None:
    with Run(spec_of(odd_mixture), "choose", cut=lambda number: 3 if number == 1 else 7) as run:
        assert [run.batch() for _ in range(3)] == [7, 3, 7]


def test_a_state_of_the_python_strategy_is_refused(odd_mixture: dict[str, Any]) -> None:
    spec = spec_of(odd_mixture)
    with Run(spec, "python") as python:
        python.batch()
        start = python.resumed_at()
    with pytest.raises(UsageError, match="strategy"):
        Run(spec, "choose", start=start)


def test_a_parked_mixture_pulls_nothing_more_and_goes_on_afterwards(
    odd_mixture: dict[str, Any],
) -> None:
    with Run(spec_of(odd_mixture), "choose") as run:
        run.take(14)
        run.pipeline.park(True)
        while (filled := run.pipeline.next(0.5)) is not None:
            run.pipeline.release(filled.slot)
        run.pipeline.park(False)
        assert run.pipeline.next(30.0) is not None


def test_close_returns_with_the_threads_ended(odd_mixture: dict[str, Any]) -> None:
    run = Run(spec_of(odd_mixture), "choose")
    with run:
        run.batch()
    assert run.pipeline._arrivals.join(0)
    assert run.pipeline._assembler.join(0)
