"""Split expressions: what they name, and what is refused."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoloader.errors import SpecError
from autoloader.formats.dataset import ShardSlice, resolve_split

SHARDS = {"train": [10, 0, 5, 10], "val": [4], "empty": []}


def slices_of(shards: dict[str, list[int]]) -> dict[str, tuple[ShardSlice, ...]]:
    """Whole shards of these numbers of records."""
    return {
        split: tuple(ShardSlice("", k, 0, count, split) for k, count in enumerate(counts))
        for split, counts in shards.items()
    }


def named(expression: str, shards: dict[str, list[int]] = SHARDS) -> list[tuple[str, int]]:
    """(split, record counted from the start of the split) of everything that is named."""
    records = []
    for part in resolve_split(expression, slices_of(shards), field="datasets.x.split"):
        base = sum(shards[part.split][: part.index])
        records += [(part.split, base + place) for place in range(part.start, part.stop)]
    return records


def train(*ranges: range) -> list[tuple[str, int]]:
    return [("train", record) for part in ranges for record in part]


def test_a_split_that_is_named_like_a_keyword_wins_over_the_keyword():
    assert named("all", {"all": [2], "train": [3]}) == [("all", 0), ("all", 1)]


@pytest.mark.parametrize(
    "expression",
    ["", "train[]", "train[:]", "train[5]", "train[5%]", "train[1:2:3]", "train[a:b]",
     "train[1.5:]", "train[.:]", "train[%:]", "train[:101%]", "train[:90%", "all[:50%]",
     "train val", "train+", "train[ :5]", "train[0:26]", "train[-26:]", "tränn"],
)  # fmt: skip
def test_what_tfds_would_not_read_is_refused_naming_the_field(expression: str):
    with pytest.raises(SpecError) as caught:
        resolve_split(expression, slices_of(SHARDS), field="datasets.bridge.split")
    assert caught.value.path == "datasets.bridge.split"
    assert "datasets.bridge.split" in str(caught.value)


@given(st.text(alphabet="trainvl[]:%+-0123456789.shd _", max_size=24))
def test_any_text_gives_ranges_within_the_shards_or_a_spec_error(text: str):
    try:
        ranges = resolve_split(text, slices_of(SHARDS), field="split")
    except SpecError:
        return
    for part in ranges:
        assert 0 <= part.start < part.stop <= SHARDS[part.split][part.index]


def test_every_expression_means_what_it_means_to_tfds():
    splits = pytest.importorskip("tensorflow_datasets.core.splits", reason="needs tfds")
    naming = pytest.importorskip("tensorflow_datasets.core.naming", reason="needs tfds")

    number = st.one_of(
        st.none(),
        st.integers(-40, 40).map(str),
        st.integers(-110, 110).map("{}%".format),
        st.decimals(-100, 100, places=1).map("{}%".format),
        st.integers(-6, 6).map("{}shard".format),
    )
    bounded = st.builds(
        lambda name, first, last: f"{name}[{first or ''}:{last or ''}]",
        st.sampled_from(["train", "val"]),
        number,
        number,
    )
    single = st.builds("train[{}{}]".format, st.integers(-6, 6), st.sampled_from(["shard", ""]))
    term = st.one_of(bounded, single, st.sampled_from(["train", "val", "all", "all[:1]", "x"]))
    expressions = st.lists(term, min_size=1, max_size=3).map(" + ".join)
    lengths = st.lists(st.integers(0, 12), min_size=1, max_size=5)

    def of_tfds(expression: str, shards: dict[str, list[int]]) -> list[tuple[str, int, int]]:
        infos = splits.SplitDict(
            [
                splits.SplitInfo(
                    name=name,
                    shard_lengths=counts,
                    num_bytes=0,
                    filename_template=naming.ShardedFileTemplate(
                        data_dir="/d", dataset_name="d", split=name, filetype_suffix="tfrecord"
                    ),
                )
                for name, counts in shards.items()
            ]
        )
        for one in splits.AbstractSplit.from_spec(expression).to_absolute(infos):
            # TFDS takes an end that lies a record before the start for the end of the split
            assume(one.from_ is None or one.to is None or one.from_ <= one.to)
        records = []
        for part in infos[expression].file_instructions:
            name, shard = part.filename.split("-")[1].split(".")[0], int(part.filename[-14:-9])
            count = part.examples_in_shard - part.skip if part.take == -1 else part.take
            records += [(name, shard, part.skip + place) for place in range(count)]
        return records

    both_read_something = 0

    @settings(max_examples=600, deadline=None, derandomize=True)
    @given(expressions, lengths, lengths)
    def compare(expression: str, train_counts: list[int], val_counts: list[int]) -> None:
        shards = {"train": train_counts, "val": val_counts}
        try:
            expected = of_tfds(expression, shards)
        except (ValueError, NotImplementedError, TypeError):
            expected = []
        try:
            found = [
                (part.split, part.index, place)
                for part in resolve_split(expression, slices_of(shards), field="split")
                for place in range(part.start, part.stop)
            ]
        except SpecError:
            found = []
        assert found == expected
        nonlocal both_read_something
        both_read_something += bool(found)

    compare()
    assert both_read_something > 100
