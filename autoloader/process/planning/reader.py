"""Chooses the reader of a mixture: by index, or as a stream.

Not here: either (``pipeline.read``), where the indexes come from (``index.opening``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autoloader.errors import SpecError
from autoloader.formats import files
from autoloader.index.opening import find_indexes
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture

STREAMED = ("gs",)
"""Schemes that TensorFlow opens by itself: data there can be streamed."""


def choose_reader(mixture: ResolvedMixture, knob: str) -> tuple[Literal["stream", "indexed"], str]:
    """Which reader, and why: the spec's, else the knob's, else by where the data lies.

    Raises:
        SpecError: a reader is asked for that cannot read the data, or none can read all of it.
    """
    spec = mixture.spec
    pinned = spec.reader if spec.reader != "auto" else knob
    away = [dataset for dataset in mixture.datasets if dataset.remote]
    why_away, fits = _reader_of_away(away, pinned)
    if fits == "stream":
        _refuse_rules(away)
    indexed = [dataset.name for dataset in mixture.datasets if not dataset.streamable]
    if away and indexed and fits == "stream":
        raise SpecError(
            f"datasets: {_and_others(indexed)} holds LeRobot data, which is read by index, and "
            f"{_and_others([one.name for one in away])} is remote, which is read as a stream",
            remedy="copy the remote data to a local disk, or train on either",
            path="datasets",
        )
    if away and pinned == "indexed" and fits == "stream":
        field = "reader" if spec.reader != "auto" else "knobs.reader"
        raise SpecError(
            f"{field}: indexed, but {why_away}",
            remedy="pip install 'autoloader-rlds[remote]', use reader: stream (or auto), or copy "
            "the data to a local disk",
            path=field,
        )
    if away and pinned not in ("stream", "indexed"):
        return fits, why_away
    if pinned == "stream" and indexed:
        field = "reader" if spec.reader != "auto" else "knobs.reader"
        raise SpecError(
            f"{field}: stream, but {_and_others(indexed)} holds LeRobot data, which is read by "
            "index only",
            remedy="use reader: auto",
            path=field,
        )
    if pinned in ("stream", "indexed"):
        who = "the spec pins it" if spec.reader != "auto" else "the knob says so"
        return ("stream" if pinned == "stream" else "indexed"), who
    return "indexed", "all files are local"


def _reader_of_away(
    away: Sequence[ResolvedDataset], pinned: str
) -> tuple[str, Literal["stream", "indexed"]]:
    """Why remote datasets are read as they are, and which reader suits them."""
    if not away:
        return "all files are local", "indexed"
    where = f"{_and_others([one.name for one in away])} lies at {away[0].directory.path}"
    if pinned == "stream":
        return where, "stream"
    if not all(one.indexable for one in away):
        return f"{where}, where TensorFlow streams: no client that gives ranges is there", "stream"
    if pinned == "indexed" or None not in find_indexes(away):
        return f"{where}, with index files: shards arrive in the order of the plan", "indexed"
    rules = any(one.keep is not None for one in away)
    if not rules and all(files.scheme_of(one.directory.path) in STREAMED for one in away):
        return f"{where}, without index files: TensorFlow streams it until it has some", "stream"
    return f"{where}, which is fetched and indexed first: it has no index files", "indexed"


def _refuse_rules(away: Sequence[ResolvedDataset]) -> None:
    """Rules over remote data need an index: they ask for texts of every record."""
    for one in away:
        if one.keep is not None:
            raise SpecError(
                f"datasets[{one.name}].keep: {one.directory.path} is streamed, and rules ask for "
                "texts of every record",
                remedy="read it by index (reader: auto, with what the extra remote brings), or use "
                "a transform that drops episodes (return None) and bars steps (valid)",
                path=f"datasets[{one.name}].keep",
            )


def reader_of_profile(mixture: ResolvedMixture, reader: str, notes: list[str]) -> str:
    """The profile's reader, or auto: what a profile says gives way to the spec, with a note.

    Args:
        mixture: the resolved mixture that is read.
        reader: reader that the profile asks for; "auto" chooses.
        notes: list that remarks for people are added to.
    """
    spec = mixture.spec
    if reader != "auto" and spec.reader not in ("auto", reader):
        why = f"the spec's reader: {spec.reader}"
    elif reader == "indexed" and not all(one.indexable for one in mixture.datasets):
        why = "the spec's remote data, of which nothing here fetches ranges"
    elif reader == "stream" and spec.mixing.chain and not any(d.remote for d in mixture.datasets):
        why = "the spec's mixing.chain, which needs an index"
    elif reader == "stream" and not all(one.streamable for one in mixture.datasets):
        why = "the spec's LeRobot data, which is read by index only"
    else:
        return reader
    notes.append(f"reader: {reader} of the profile gives way to {why}")
    return "auto"


def _and_others(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (as {len(names) - 1} more)"
