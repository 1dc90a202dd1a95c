"""A batch under way, and the jobs that decode its rows.

A row is one job. A frame that several rows of a batch show is decoded for one of them and copied to
the others, which costs a few hundredths of its decoding, where the bytes of all were read together.
(Two threads that come to it at the same moment both decode it.) Rows of a chained dataset
(``sampling.chains``) that share frames and follow each other are one job together. Where a batch
ends within a chain the frame at the cut is decoded twice, unless the frame cache has taken it.

A frame that cannot be decoded fails for every row that shows it, each on its own account.

Not here: threads (``decode.pool``), which sample a row takes (``decode.assembler``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autoloader.decode.frames import UndecodableFrameError
from autoloader.decode.message import BatchMessage
from autoloader.decode.pool import Job
from autoloader.errors import as_fault
from autoloader.samples.block import Encoded, FrameLease, Place, SampleBlock


class Decoder(Protocol):
    """Decodes one camera's frames; see ``decode.frames.FrameDecoder``."""

    def decode_into(self, encoded: Encoded, out: np.ndarray) -> None:
        """Decode and resize into ``out`` [H, W, C]."""
        ...


class PendingBatch:
    """A batch under way: rows are decoded by many threads, the last one to finish says so.

    Attributes:
        batch: what it becomes.
        views: its slot's arrays.
        done: set when all rows are.
        bad: rows that cannot be used: row, place, reason.
        leases: of the blocks that its rows are of, and how many rows each.
    """

    def __init__(self, batch: BatchMessage, views: dict[str, np.ndarray]) -> None:
        self.batch = batch
        self.views = views
        self.done = threading.Event()
        self.bad: list[tuple[int, Place, str]] = []
        self.leases: list[tuple[FrameLease, int]] = []
        self._left = batch.rows
        self._lock = threading.Lock()

    def rows_done(self, rows: int = 1) -> None:
        """So many more rows are decoded, or have failed; with the last one leases are told."""
        with self._lock:
            self._left -= rows
            if self._left:
                return
        for lease, filled in self.leases:
            lease.filled(filled)
        self.done.set()


@dataclass(slots=True)
class RowJob:
    """Decode one row's frames.

    Attributes:
        dataset: number of its dataset.
        row: of the batch.
        pending: the batch.
        block, number: the sample, and which of its block's it is.
        decoders: of its dataset's cameras.
        name: of its dataset.
        seen: camera → frame of the block → where a row of this batch has it decoded; added to.
    """

    dataset: int
    row: int
    pending: PendingBatch
    block: SampleBlock
    number: int
    decoders: Mapping[str, Decoder]
    name: str
    seen: Mapping[str, dict[int, np.ndarray]]

    @property
    def rows(self) -> int:
        """One."""
        return 1

    @property
    def slot(self) -> int:
        """See ``decode.pool.Job``."""
        return self.pending.batch.slot

    def run(self) -> int:
        """See ``decode.pool.Job``."""
        decoded = 0
        try:
            for camera, decoder in self.decoders.items():
                out = self.pending.views[f"images/{camera}"][self.row]
                frames = self.block.frames.get(camera)
                if frames is None:
                    out[:] = 0
                else:
                    decoded += self._decode(camera, decoder, frames, out)
        except UndecodableFrameError as error:
            place = self.block.place_at(self.number)
            reason = f"a frame cannot be decoded: {error}"
            self.pending.bad.append((self.row, place, reason))
        except Exception as error:  # decoders raise whatever the bytes provoke
            raise as_fault(error, "decode", self.name) from error
        self.pending.rows_done()
        return decoded

    def _decode(
        self,
        camera: str,
        decoder: Decoder,
        frames: Sequence[Encoded | None],
        out: np.ndarray,
    ) -> int:
        zeroed, lease = self.block.frame_zeroed[self.number], self.block.lease
        seen, decoded = self.seen[camera], 0
        for f, at in enumerate(self.block.frame_row[self.number].tolist()):
            encoded = frames[at]
            slot = -1 if lease is None else int(lease.slots[camera][at])
            if zeroed[f]:
                out[f] = 0
            elif lease is not None and slot >= 0 and lease.written[camera][slot]:
                lease.gather(camera, lease.slots[camera][at : at + 1], out[f].reshape(1, -1))
            elif encoded is None:
                out[f] = 0
            elif at in seen:
                out[f] = seen[at]
            else:
                picture = out[f]
                decoder.decode_into(encoded, picture)
                seen[at] = picture
                decoded += 1
                if lease is not None and slot >= 0:
                    lease.put(camera, slot, picture)
        return decoded


@dataclass(slots=True)
class ChainJob:
    """Decode rows of one batch and one group, each different frame once."""

    dataset: int
    jobs: Sequence[RowJob]

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.jobs)

    @property
    def slot(self) -> int:
        """See ``decode.pool.Job``."""
        return self.jobs[0].slot

    def run(self) -> int:
        """See ``decode.pool.Job``."""
        return sum(job.run() for job in self.jobs)


class Chains:
    """Gathers rows that share frames with the row before; called by the mixing thread alone.

    Args:
        submit: takes the jobs.
    """

    def __init__(self, submit: Callable[[Job], None]) -> None:
        self._submit = submit
        self._rows: list[RowJob] = []

    def add(self, job: RowJob) -> None:
        """The batch's next row; it may wait for what follows it."""
        if self._rows and not _follows(job, self._rows[-1]):
            self.flush()
        self._rows.append(job)

    def flush(self) -> None:
        """Submit what waits; called at a batch's end."""
        if len(self._rows) > 1:
            self._submit(ChainJob(self._rows[0].dataset, self._rows))
        elif self._rows:
            self._submit(self._rows[0])
        self._rows = []


def _follows(job: RowJob, last: RowJob) -> bool:
    linked = job.block.linked
    return job.block is last.block and linked is not None and linked[job.number]
