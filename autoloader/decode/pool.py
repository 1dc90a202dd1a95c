"""The decode pool: threads shared by all datasets, each running one job at a time.

A job decodes one sample, or a chain of samples that share frames. The number of threads may change
at any time: growing is at once, shrinking after the job in hand. Decoding releases the interpreter,
so the threads run side by side.

Not here: decoding one frame (``decode.frames``), what a job does (``decode.jobs``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from autoloader.host.threads import LoaderThread, all_ended


@dataclass(slots=True)
class Job:
    """Work for one thread: samples of one dataset.

    Attributes:
        run: does the work and gives the number of frames decoded; an exception ends the pipeline.
        dataset: index of the dataset.
        rows: number of samples that it fills.
        slot: slot of the ring that the work writes to.
    """

    run: Callable[[], int]
    dataset: int
    rows: int
    slot: int


class _Counts:
    """Work of one thread by dataset, and the job in hand.

    Plain lists: adding to an item of an array costs several times as much.
    """

    def __init__(self, datasets: int) -> None:
        self.busy_s, self.rows, self.frames = [0.0] * datasets, [0] * datasets, [0] * datasets
        self.job: Job | None = None


class DecodePool:
    """Threads that run jobs in the order submitted.

    Args:
        threads: number of threads at first.
        datasets: number of datasets, for the service times.
        failed: called with an exception that a job let out.
    """

    def __init__(
        self, threads: int, *, datasets: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._failed = failed
        self._datasets = datasets
        self._threads: list[threading.Thread] = []
        self._counts: list[_Counts] = []
        self._closed = False
        self._running = 0
        self._lock = threading.RLock()
        self.threads = 0
        # OpenCV would otherwise start threads of its own below each of ours.
        cv2.setNumThreads(1)
        self.resize(threads)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def resize(self, threads: int) -> None:
        """Have ``threads`` threads from now on."""
        with self._lock:
            if self._closed:
                return
            self.threads = threads  # before anybody is woken to look at it
            for _ in range(self._running - threads):
                self._jobs.put(None)  # wakes one that waits; who is at work looks when it is done
            for _ in range(threads - self._running):
                counts = _Counts(self._datasets)
                name = f"autoloader-decode-{len(self._counts)}"
                thread = LoaderThread(target=self._work, args=(counts,), name=name)
                self._counts.append(counts)
                self._running += 1
                self._threads.append(thread)
                thread.start()
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def service(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """[D] each: seconds of work, samples done and frames decoded so far."""
        every = list(self._counts)
        return (
            np.sum([one.busy_s for one in every], axis=0),
            np.sum([one.rows for one in every], axis=0),
            np.sum([one.frames for one in every], axis=0),
        )

    def close(self) -> None:
        """Begin no further job; each thread ends with the job that it has in hand."""
        try:
            while True:
                self._jobs.get_nowait()
        except queue.Empty:
            pass
        with self._lock:
            self.resize(0)
            self._closed = True

    def join(self, within_s: float | None) -> bool:
        """Wait for the threads, for so long in all; true if all have ended."""
        return all_ended(self._threads, within_s)

    @property
    def slots(self) -> frozenset[int]:
        """Slots that the threads write to; a closed pool adds none."""
        jobs = [counts.job for counts in list(self._counts)]
        return frozenset(job.slot for job in jobs if job is not None)

    def _work(self, counts: _Counts) -> None:
        while not self._is_surplus():
            job = self._jobs.get()
            if job is None:
                continue
            counts.job = job
            if self._closed:  # asked behind it: who closes looks at the job in hand
                counts.job = None
                return
            started = time.perf_counter()
            try:
                frames = job.run()
            except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
                with self._lock:
                    self._running -= 1
                counts.job = None
                self._failed(error)
                return
            dataset = job.dataset
            counts.busy_s[dataset] += time.perf_counter() - started
            counts.rows[dataset] += job.rows
            counts.frames[dataset] += frames
            counts.job = None
            del job  # what it refers to must not wait with this thread for the next one

    def _is_surplus(self) -> bool:
        """True if the calling thread is one too many; it then ends."""
        if self._running <= self.threads:
            return False
        with self._lock:
            if self._running <= self.threads:
                return False
            self._running -= 1
            return True
