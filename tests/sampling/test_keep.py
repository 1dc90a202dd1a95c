"""Which t are kept: what each rule takes, what is told of it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from rlds_files import PLAIN, TEXT, Written, episode, numbers, write_dataset
from streams import dataset_of, mixture_of

from autoloader.errors import SourceError, SpecError
from autoloader.formats.records import read_records
from autoloader.index import count_indexed, open_dataset_index
from autoloader.index.counting import count_mixture
from autoloader.index.records import RecordSamples
from autoloader.samples.block import Place
from autoloader.samples.resolve import ResolvedMixture
from autoloader.samples.transforms.keep import DatasetCount

PATH = "episode_metadata/file_path"
ID = "episode_metadata/id"
FEATURES = {
    **PLAIN,
    PATH: TEXT,
    ID: numbers(dtype="int64"),
    "episode_metadata/score": numbers(),
    "points": numbers(6, dtype="int32"),
    "other_language": TEXT,
}


def record(number: int, steps: int, **other: Any) -> dict[str, Any]:
    """Odd episodes fail; every fourth has no words in its second half."""
    half = steps // 2 if number % 4 == 0 else steps
    words = [b"fold"] * half + [b" \t"] * (steps - half)
    points = [*map(ord, "go"), *[0] * 4] * half + [0] * 6 * (steps - half)
    name = f"/{'failure' if number % 2 else 'success'}/größe {number}"
    own = {PATH: [name.encode()], ID: [number], "episode_metadata/score": [0.5]}
    own |= {"points": points, "other_language": [b"twice"] * (steps - 1) + [b""]}
    return episode(number, steps, language_instruction=words, **(own | other))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Six episodes of six frames in three shards."""
    records = [
        [record(0, 6), record(1, 6), record(2, 6)],
        [record(3, 6)],
        [record(4, 6), record(5, 6)],
    ]
    return write_dataset(tmp_path_factory.mktemp("keep"), records, features=FEATURES)


def kept_t(mixture: ResolvedMixture) -> list[list[int]]:
    """The t of every record that the plain reader gives, sorted; held against the count."""
    (dataset,) = mixture.datasets
    found = []
    for shard, piece in enumerate(dataset.slices):
        for one in read_records(piece.path, piece.start, piece.stop):
            place = Place(0, 0, shard, one.number)
            given = RecordSamples(dataset, mixture.layout).of(place, one.payload)
            found.append([] if given is None else sorted(given.t.tolist()))
    assert counted(mixture).samples == sum(map(len, found))
    return found


def counted(mixture: ResolvedMixture) -> DatasetCount:
    return count_indexed(open_dataset_index(mixture.datasets[0]))


def keeping(written: Written, keep: dict[str, Any], **own: Any) -> ResolvedMixture:
    return mixture_of(dataset_of(written, keep=keep, **own))


ALL, NONE = list(range(6)), list[int]()


@pytest.mark.parametrize(
    ("keep", "own", "wanted"),
    [
        ({"language": "required"}, {}, [ALL[:3], ALL, ALL, ALL, ALL[:3], ALL]),
        ({"language": "required"}, {"language": "points"}, [ALL[:3], ALL, ALL, ALL, ALL[:3], ALL]),
        (
            {"language": "required"},
            {"language": {"any_of": ["language_instruction", "other_language"]}},
            [ALL[:3], ALL[:5], ALL[:5], ALL[:5], ALL[:3], ALL[:5]],
        ),
        ({"language": "anywhere"}, {"language": "points"}, [ALL] * 6),
        ({"match": {PATH: "success"}}, {}, [ALL, NONE, ALL, NONE, ALL, NONE]),
        ({"match": {PATH: r"größe [0-2]$"}}, {}, [ALL, ALL, ALL, NONE, NONE, NONE]),
        ({"match": {"points": "^$"}}, {}, [ALL[3:], NONE, NONE, NONE, ALL[3:], NONE]),
        (
            {"match": {PATH: "success", "other_language": "twice"}, "language": "required"},
            {"stride": 2},
            [[0, 1], NONE, [0, 1, 2], NONE, [0, 1], NONE],
        ),
    ],
)
def test_rules_leave_the_steps_that_they_say(
    keep: dict[str, Any], own: dict[str, Any], wanted: list[list[int]], written: Written
):
    assert kept_t(keeping(written, keep, **own)) == wanted


def ranges_in(folder: Path, document: Any, key: str) -> dict[str, Any]:
    file = folder / "keep.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return {"ranges": {"file": str(file), "key": key}}


def test_a_rule_that_leaves_nothing_is_named_with_what_it_takes(written: Written):
    with pytest.raises(SourceError, match=r"keep\.match\.episode_metadata/file_path removes 36"):
        count_mixture(keeping(written, {"match": {PATH: "nowhere"}}))


REFUSED = [
    ({"match": {"episode_metadata/file": "x"}}, "keep.match.episode_metadata/file", PATH),
    ({"match": {"action": "x"}}, "keep.match.action", "text"),
    ({"match": {"observation/image": "x"}}, "keep.match.observation/image", "text"),
    ({"ranges": {"file": "keep.json", "key": "{nothing}"}}, "keep.ranges.key", "the dataset has"),
    ({"ranges": {"file": "keep.json", "key": "{language_instruction}"}}, "keep.ranges.key",
     "features of the episode"),
    ({"ranges": {"file": "keep.json", "key": "{episode_metadata/score}"}}, "keep.ranges.key",
     "text"),
    ({"ranges": {"file": "nowhere.json", "key": f"{{{ID}}}"}}, "keep.ranges.file", "JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("keep", "path", "remedy"), REFUSED, ids=lambda v: str(v)[:50])
def test_rules_over_what_is_not_there_are_refused(
    keep: dict[str, Any], path: str, remedy: str, written: Written
):
    with pytest.raises(SpecError) as caught:
        keeping(written, keep)
    assert caught.value.path == f"datasets[robot].{path}"
    assert path in caught.value.what
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "document",
    ["{", "[1]", {"0": 5}, {"0": [[1, 2, 3]]}, {"0": [[3, 2]]}, {"0": [[-1, 2]]},
     {"0": [[0.5, 2]]}, {"0": [[True, 2]]}, {"0": ["ab"]}, "[" * 9000],
)  # fmt: skip
def test_a_file_that_holds_no_ranges_is_refused(document: Any, written: Written, tmp_path: Path):
    with pytest.raises(SpecError) as caught:
        keeping(written, ranges_in(tmp_path, document, f"{{{ID}}}"))
    assert caught.value.path == "datasets[robot].keep.ranges.file"
    assert "[[start, end], …]" in caught.value.remedy
