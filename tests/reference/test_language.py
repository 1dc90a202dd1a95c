"""Instructions that are stored as integers or as several strings, in both readers."""

import collections
from typing import Any

import pytest
from rlds_files import PLAIN, TEXT, Written, episode, numbers, png, write_dataset
from streams import dataset_of, mixture_of, opened, spec_of

from autoloader.errors import SpecError

READERS = pytest.mark.parametrize("reader", ["stream", "indexed"])
LENGTHS = (6, 1, 9)
FEATURES = {
    **PLAIN,
    "task": numbers(dtype="int64"),
    "label": numbers(dtype="int64"),
    "instructions": numbers(3, dtype="string"),
    "episode_metadata/task": numbers(dtype="int32"),
    "episode_metadata/instructions": numbers(2, dtype="string"),
    "ragged": numbers(None, dtype="string"),
    "fraction": numbers(),
    "note": TEXT,
}
NAMES = {0: "pick up the block", 1: "öffne die Tür", 7: " "}
LABELS = ("first label", "second label")


def task(record: int, step: int) -> int:
    return (0, 1, 7, 9, -1)[(record + step) % 5]


def instructions(record: int, step: int) -> list[str]:
    """Three, of which some are blank: none of every fourth step."""
    said = [f"do {record} {step}", f"tue {record} {step}", "fais ça"]
    blank = step % 4
    return [" " if k < blank else text for k, text in enumerate(said)]


def of_episode(record: int) -> list[str]:
    return ["", f"episode {record}"] if record else ["go", "gehe"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    records = [
        episode(
            record,
            steps,
            encode=png,
            **{
                "task": [task(record, step) for step in range(steps)],
                "label": [step % 2 for step in range(steps)],
                "instructions": [
                    one.encode() for step in range(steps) for one in instructions(record, step)
                ],
                "episode_metadata/task": [record],
                "episode_metadata/instructions": [one.encode() for one in of_episode(record)],
                "ragged": [],
                "fraction": [0.5] * steps,
                "note": [b"n"] * steps,
            },
        )
        for record, steps in enumerate(LENGTHS)
    ]
    features = {name: one for name, one in FEATURES.items() if name != "ragged"}
    made = write_dataset(tmp_path_factory.mktemp("said"), [records], features=features)
    (made.path / "steps-label.labels.txt").write_text("\n".join(LABELS) + "\n")
    return made


def texts(written: Written, reader: str, language: Any, **own: Any) -> dict[tuple[int, int], str]:
    """(record, t) → what the loader says, of one pass."""
    spec = spec_of(
        dataset_of(written, language=language, **own), reader=reader, weights="natural",
        batch={"size": 4, "drop_last": False},
    )  # fmt: skip
    found = {}
    with opened(spec, controller=False) as loader:
        for batch in loader:
            for row, text in zip(batch["provenance"].tolist(), batch["language"], strict=True):
                found[row[3], row[4]] = text
    return found


def every_step(stride: int = 1) -> list[tuple[int, int]]:
    return [(r, t) for r, steps in enumerate(LENGTHS) for t in range(-(-steps // stride))]


@READERS
def test_class_labels_come_as_the_names_that_lie_beside_the_metadata(written: Written, reader: str):
    found = texts(written, reader, "label")
    assert found == {(r, t): LABELS[t % 2] for r, t in every_step()}


@READERS
def test_of_several_strings_the_first_that_is_not_blank_comes(written: Written, reader: str):
    found = texts(written, reader, {"path": "instructions", "several": "first"})
    wanted = {at: [one for one in instructions(*at) if one.strip()] for at in every_step()}
    assert found == {at: (said or [""])[0] for at, said in wanted.items()}
    once = texts(written, reader, {"path": "episode_metadata/instructions", "several": "first"})
    assert once == {(r, t): f"episode {r}" if r else "go" for r, t in every_step()}


def test_of_several_strings_one_is_drawn_for_each_sample_alike_in_both_readers(written: Written):
    how = {"path": "instructions", "several": "draw"}
    found = texts(written, "indexed", how)
    assert found == texts(written, "stream", how)
    places: collections.Counter[int] = collections.Counter()
    for at, text in found.items():
        said = [one for one in instructions(*at) if one.strip()]
        assert text in said or (not said and not text)
        places[instructions(*at).index(text) if text else -1] += 1
    assert len(places) == 4  # all three, and none
    once = {"path": "episode_metadata/instructions", "several": "draw"}
    by_episode = texts(written, "indexed", once)
    assert by_episode == texts(written, "stream", once)
    assert {by_episode[0, t] for t in range(LENGTHS[0])} == {"go", "gehe"}
    assert {by_episode[2, t] for t in range(LENGTHS[2])} == {"episode 2"}


@READERS
def test_steps_without_an_instruction_are_left_out_where_language_is_required(
    written: Written, reader: str
):
    keep = {"language": "required"}
    found = texts(written, reader, {"path": "task", "names": NAMES}, keep=keep)
    assert sorted(found) == [at for at in every_step() if task(*at) in (0, 1)]
    several = texts(written, reader, {"path": "instructions", "several": "draw"}, keep=keep)
    assert sorted(several) == [at for at in every_step() if at[1] % 4 != 3]


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("task", "steps-task.labels.txt"),
        ("instructions", "is several texts, and a sample has one"),
        ({"path": "note", "several": "draw"}, "one text"),
        ({"path": "note", "names": ["a"]}, "not an integer"),
        ({"path": "fraction", "names": ["a"]}, "not an integer"),
        ({"path": "task", "names": {}}, "does not map integers"),
        ({"path": "task", "names": {"zero": "a"}}, "does not map integers"),
        ({"path": "task", "names": {0: 1}}, "does not map integers"),
        ({"path": "task", "names": {True: "a"}}, "does not map integers"),
        ({"path": "instructions", "several": "all"}, "several: 'all'"),
        ({"path": "task", "any_of": ["task"]}, "has path and any_of"),
        ({"path": "task", "name": ["a"]}, "unknown key 'name'"),
        ({"any_of": ["task", "note"], "names": ["a"]}, "not an integer"),
        ({"names": ["a"]}, "names no feature"),
        (7, "names no feature"),
    ],
)
def test_what_is_no_instruction_is_refused_by_field_with_a_remedy(
    written: Written, language: Any, said: str
):
    with pytest.raises(SpecError, match="language") as refused:
        mixture_of(dataset_of(written, language=language))
    assert said in str(refused.value)
    assert refused.value.remedy
