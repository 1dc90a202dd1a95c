"""The decode pool: threads shared by all datasets, each taking one job's frames at a time.

A job is one sample, or a chain of samples that share frames. The number of threads may change at
any time: growing is at once, shrinking after the job in hand. Decoding releases the interpreter,
so the threads run side by side.

Not here: decoding one frame (``decode.frames``), what a job is for (``decode.assembler``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from autoloader.host.threads import LoaderThread, all_ended


class Job(Protocol):
    """Samples of one dataset to decode."""

    dataset: int

    @property
    def rows(self) -> int:
        """How many."""
        ...

    @property
    def slot(self) -> int:
        """The slot of the ring that it writes to."""
        ...

    def run(self) -> int:
        """Do it; the frames that were decoded. What it raises ends the pipeline."""
        ...


class DecodePool:
    """Threads that run jobs in the order submitted.

    Args:
        threads: how many at first.
        datasets: number of datasets, for the service times.
        failed: told of an exception that a job let out.
    """

    def __init__(
        self, threads: int, *, datasets: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._failed = failed
        self._datasets = datasets
        self._threads: list[threading.Thread] = []
        self._in_hand: list[list[Job]] = []
        self._closed = False
        self._busy: list[list[float]] = []
        self._done: list[list[int]] = []
        self._frames: list[list[int]] = []
        self._started = 0
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
                # Plain lists: adding to an item of an array costs several times as much.
                busy, done = [0.0] * self._datasets, [0] * self._datasets
                frames, in_hand = [0] * self._datasets, list[Job]()
                self._busy.append(busy)
                self._done.append(done)
                self._frames.append(frames)
                self._in_hand.append(in_hand)
                thread = LoaderThread(
                    target=self._work,
                    args=(busy, done, frames, in_hand),
                    name=f"autoloader-decode-{self._started}",
                )
                self._started += 1
                self._running += 1
                self._threads.append(thread)
                thread.start()
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def service(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Seconds of work, samples done and frames decoded so far, per dataset ([D] each)."""
        busy, done, frames = (np.asarray(each) for each in (self._busy, self._done, self._frames))
        return busy.sum(axis=0), done.sum(axis=0), frames.sum(axis=0)

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
        """Wait for the threads, for so long in all; whether all have ended."""
        return all_ended(self._threads, within_s)

    @property
    def slots(self) -> frozenset[int]:
        """The slots that its threads write to; of a closed pool there come no others."""
        return frozenset(job.slot for jobs in list(self._in_hand) for job in list(jobs))

    def _work(
        self, busy: list[float], done: list[int], frames: list[int], in_hand: list[Job]
    ) -> None:
        try:
            self._run_jobs(busy, done, frames, in_hand)
        finally:
            in_hand.clear()

    def _run_jobs(
        self, busy: list[float], done: list[int], frames: list[int], in_hand: list[Job]
    ) -> None:
        while not self._is_surplus():
            job = self._jobs.get()
            if job is None:
                continue
            in_hand.append(job)
            if self._closed:  # asked behind it: who closes looks at what is in hand
                return
            started = time.perf_counter()
            try:
                decoded = job.run()
            except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
                with self._lock:
                    self._running -= 1
                self._failed(error)
                return
            dataset = job.dataset
            busy[dataset] += time.perf_counter() - started
            done[dataset] += job.rows
            frames[dataset] += decoded
            in_hand.clear()
            del job  # what it holds must not wait with this thread for the next one

    def _is_surplus(self) -> bool:
        """Whether the calling thread is one too many; it then ends."""
        if self._running <= self.threads:
            return False
        with self._lock:
            if self._running <= self.threads:
                return False
            self._running -= 1
            return True
