"""Messages from a pipeline to its consumer, where a pipeline begins, and its bad records.

Bad records are counted, named, and tolerated up to the spec's limit.

Not here: filling batches (``decode.batch_builder``), finding bad records
(``pipeline.graph.reader``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np

from autoloader.host.frozen import frozen
from autoloader.samples.block import Place
from autoloader.samples.layout import Batch, BatchLayout, split_texts
from autoloader.samples.resolve import ResolvedMixture
from autoloader.samples.transforms.keep import too_many_bad
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.mixture import MixtureOrder

_CODEC = ("utf-8", "surrogateescape")


@dataclass(slots=True)
class BatchMessage:
    """A batch in a slot, on its way to the consumer.

    Attributes:
        slot: number of the slot that holds the batch.
        rows: number of samples in the batch.
        number: number of the batch since the pipeline began, from 0.
        texts: languages too long for the slot, by row.
        empties: records without samples that were passed over since the last batch.
        mixer: state of the mixer after this batch.
        non_finite: rows whose own action or state holds a value that is not finite.
        called: texts that ``batch.call`` gave, by name.
    """

    slot: int
    rows: int
    number: int
    texts: dict[int, bytes] = field(default_factory=dict)
    empties: list[Place] = field(default_factory=list)
    mixer: dict[str, Any] = field(default_factory=dict)
    non_finite: list[int] = field(default_factory=list)
    called: dict[str, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Fields as values of JSON."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "texts": {row: text.decode(*_CODEC) for row, text in self.texts.items()},
            "empties": [place.numbers() for place in self.empties],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> BatchMessage:
        """The message that ``plain`` gave these values of; JSON may have made texts of its keys."""
        texts = {int(row): text.encode(*_CODEC) for row, text in plain["texts"].items()}
        empties = [Place(*numbers) for numbers in plain["empties"]]
        return cls(**{**plain, "texts": texts, "empties": empties})


@frozen
class PipelineStart:
    """Where a pipeline begins.

    Attributes:
        cursors: one for each dataset.
        mixer: state of the mixer, or ``None`` for the start.
        first_number: number of the first batch.
        position: samples handed out before, over all ranks.
        in_epoch: number of these samples that belong to the current epoch; negative where samples
            of the epoch before were carried into it.
    """

    cursors: tuple[DatasetCursor, ...]
    mixer: dict[str, Any] | None
    first_number: int = 0
    position: int = 0
    in_epoch: int = 0

    def deal(self, mixture: ResolvedMixture, order: MixtureOrder, ranks: Ranks) -> Deal:
        """The steps of a rank from here on."""
        batch, at = mixture.spec.batch, (self.position, self.in_epoch, self.first_number)
        return Deal(ranks, batch.size, batch.drop_last, order.epoch_samples, *at)

    def plain(self) -> dict[str, Any]:
        """Fields as values of JSON."""
        values = {of.name: getattr(self, of.name) for of in fields(self)}
        return {**values, "cursors": [cursor.state() for cursor in self.cursors]}

    @classmethod
    def from_plain(cls, mixture: ResolvedMixture, plain: dict[str, Any]) -> PipelineStart:
        """The start that ``plain`` gave these values of."""
        cursors = tuple(DatasetCursor.of(dataset) for dataset in mixture.datasets)
        for cursor, state in zip(cursors, plain["cursors"], strict=True):
            cursor.restore(state)
        return cls(**{**plain, "cursors": cursors})


def languages(views: dict[str, np.ndarray], batch: BatchMessage) -> list[bytes]:
    """UTF-8 language of every row of a filled batch; texts of features behind it."""
    ends = views["language_end"][: batch.rows].tolist()
    text = views["language_text"][: ends[-1] if ends else 0].tobytes()
    found = [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    for row, own in batch.texts.items():
        found[row] = own
    return found


def texts_of(
    layout: BatchLayout, views: dict[str, np.ndarray], batch: BatchMessage
) -> tuple[list[bytes], dict[str, list[Any]]]:
    """UTF-8 language of every row of a filled batch, and the features that are texts, by name."""
    texts = languages(views, batch)
    if "text_length" not in views:
        return texts, {}
    lengths = views["text_length"][: batch.rows]
    return split_texts(layout.features, layout.state_rows, texts, lengths)


_TOLD = {"none": (), "dataset_only": ("dataset_index",), "full": ("dataset_index", "provenance")}


def assemble(
    mixture: ResolvedMixture,
    views: dict[str, np.ndarray],
    filled: BatchMessage,
    wrap: Callable[[np.ndarray], Any],
) -> Batch:
    """The batch over the arrays of a filled slot, each of them wrapped."""
    texts, features = texts_of(mixture.layout, views, filled)
    batch: dict[str, Any] = {"images": {}, "frame_mask": {}}
    for name, view in views.items():
        part, _, camera = name.partition("/")
        if part == "called":
            batch[camera] = wrap(view[: filled.rows])
        elif camera:
            batch.setdefault(part, {})[camera] = wrap(view[: filled.rows])
    for name in ("frame_offset", "action", "action_mask", "state", "state_mask"):
        batch[name] = wrap(views[name][: filled.rows])
    if features:
        batch.setdefault("features", {}).update(features)
    batch |= filled.called
    batch["language"] = [text.decode("utf-8", "replace") for text in texts]
    for name in ("has_action", "sample_weight", *_TOLD[mixture.spec.metadata]):
        if name in views:
            batch[name] = wrap(views[name][: filled.rows])
    return cast("Batch", batch)


logger = logging.getLogger(__name__)


@frozen
class BadRecord:
    """A quarantined record.

    Attributes:
        dataset: name of the dataset.
        path: path of the shard file.
        shard: number of the slice, as in ``provenance``.
        record: number of the record in the file, from 0.
        reason: reason of the quarantine, for people.
    """

    dataset: str
    path: str
    shard: int
    record: int
    reason: str


TellBad = Callable[[Place, str], None]
"""Told of a bad record, and the reason, by any thread; its error ends the caller for good."""


class Quarantine:
    """Bad records of a mixture; thread-safe."""

    def __init__(self, mixture: ResolvedMixture) -> None:
        self._mixture = mixture
        self._lock = threading.Lock()
        self._bad: dict[tuple[int, int, int], BadRecord] = {}
        self._counts = [0] * len(mixture.datasets)

    def add(self, place: Place, reason: str) -> None:
        """Quarantine a record; a second time changes nothing.

        Raises:
            SourceError: the dataset has more bad records than ``errors.max_corrupt_ratio`` (one
                is always tolerated).
        """
        dataset = self._mixture.datasets[place.dataset]
        piece = dataset.slices[place.shard]
        with self._lock:
            key = (place.dataset, place.shard, place.record)
            if key in self._bad:
                return
            bad = BadRecord(dataset.name, piece.path, place.shard, place.record, reason)
            self._bad[key] = bad
            self._counts[place.dataset] += 1
            count = self._counts[place.dataset]
        where = f"record {place.record} of {piece.path}"
        ratio = self._mixture.spec.errors.max_corrupt_ratio
        logger.warning("dataset %s: %s is left out (quarantined): %s", dataset.name, where, reason)
        if error := too_many_bad(dataset.name, count, dataset.records, ratio, f"{where}: {reason}"):
            raise error

    def count(self, dataset: int) -> int:
        """Bad records of a dataset."""
        return self._counts[dataset]

    def records(self) -> tuple[BadRecord, ...]:
        """All bad records so far."""
        with self._lock:
            return tuple(self._bad.values())
