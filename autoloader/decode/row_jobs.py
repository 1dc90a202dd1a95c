"""A batch under way, and the jobs that decode its rows.

A row is one job. Rows that share frames (of a chained dataset, ``order.chains``) are one job
together: a frame is decoded for the first row that shows it and copied to the others, which costs
a few hundredths of its decoding. Only rows that follow each other in one batch and whose bytes were
read together are gathered; where a batch or a planned run ends within a chain, the frame at the cut
is decoded twice.

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
from autoloader.decode.pool import Job
from autoloader.errors import as_fault
from autoloader.ring.message import BatchMessage
from autoloader.samples.block import Encoded, FrameLease, Place, SampleBlock


class Decoder(Protocol):
    """Decodes one camera's frames; see ``decode.frames.FrameDecoder``."""

    def decode_into(self, encoded: Encoded, out: np.ndarray) -> None:
        """Decode and resize into ``out`` [H, W, 3] uint8."""
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
        """So many more rows are decoded, or have failed."""
        with self._lock:
            self._left -= rows
            if self._left:
                return
        self.done.set()


@dataclass(slots=True)
class RowJob:
    """Decode one row's frames."""

    dataset: int
    row: int
    pending: PendingBatch
    block: SampleBlock
    number: int
    decoders: Mapping[str, Decoder]
    name: str

    @property
    def rows(self) -> int:
        """One."""
        return 1

    def run(self) -> int:
        """See ``decode.pool.Job``."""
        return self.decode(None)

    def decode(self, seen: Mapping[str, dict[int, np.ndarray]] | None) -> int:
        """Put the row's frames in place; how many were decoded for it.

        Args:
            seen: camera → frame → where other rows have it decoded; added to.
        """
        decoded = 0
        try:
            for camera, decoder in self.decoders.items():
                out = self.pending.views[f"images/{camera}"][self.row]
                frames = self.block.frames.get(camera)
                if frames is None:
                    out[:] = 0
                else:
                    known = {} if seen is None else seen[camera]
                    decoded += self._decode(camera, decoder, frames, out, known)
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
        seen: dict[int, np.ndarray],
    ) -> int:
        zeroed, lease = self.block.frame_zeroed[self.number], self.block.lease
        decoded = 0
        for f, at in enumerate(self.block.frame_row[self.number].tolist()):
            encoded = frames[at]
            if zeroed[f]:
                out[f] = 0
            elif lease is not None and lease.held[camera][at] >= 0:
                lease.gather(camera, lease.held[camera][at : at + 1], out[f].reshape(1, -1))
            elif encoded is None:
                out[f] = 0
            elif at in seen:
                out[f] = seen[at]
            else:
                picture = out[f]
                decoder.decode_into(encoded, picture)
                seen[at] = picture
                decoded += 1
                if lease is not None and lease.kept[camera][at] >= 0:
                    lease.put(camera, int(lease.kept[camera][at]), picture)
                    lease.stored[camera][at] = True
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

    def run(self) -> int:
        """See ``decode.pool.Job``."""
        seen: dict[str, dict[int, np.ndarray]] = {camera: {} for camera in self.jobs[0].decoders}
        return sum(job.decode(seen) for job in self.jobs)


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
