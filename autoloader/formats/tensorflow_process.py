"""The process that runs TensorFlow for processes that do not import it.

Theory of operation. Planning, indexing and the command line import no TensorFlow. Where they need
it (a user's function written for it, files on its file systems) they ask a process of its own:
``autoloader.pipeline.graph.answers``, started at the first question, one question at a time. It
ends when its pipe is closed, or the process that asks does.

Not here: what is asked (``formats.files``, ``samples.transforms.transform``), who answers
(``pipeline.graph.answers``).
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any, cast

from autoloader.host.extras import require
from autoloader.host.supervision import import_path, start
from autoloader.host.threads import free_in_forks

_SAY_AFTER_S = 10.0

logger = logging.getLogger(__name__)


class ProcessEndedError(Exception):
    """The process that runs TensorFlow ended before it answered. Internal: a reason."""


class TensorFlowProcess:
    """Answers questions; any thread may ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = free_in_forks(threading.Lock(), self.leave_to_parent)
        self._path: list[str] = []

    def ask(self, question: object, *, about: str = "") -> Any:
        """Its answer; the process is started at the first question.

        Args:
            question: any value that can be pickled.
            about: path or name that a long wait is logged with.

        Raises:
            ProcessEndedError: the process ended before it answered.
            MissingExtraError: there is no TensorFlow.
        """
        with self._lock:
            if self._process is None:
                self._start()
            try:
                if self._path != sys.path:
                    self._path = list(sys.path)
                    send(self._pipe("stdin"), ("import path", import_path(), ()))
                send(self._pipe("stdin"), question)
                answers = self._pipe("stdout")
                while about and not select.select([answers], [], [], _SAY_AFTER_S)[0]:
                    logger.warning("still waiting for %s", about)
                return receive(answers)
            except (OSError, EOFError) as error:
                self._end()
                raise ProcessEndedError("the process that runs TensorFlow ended") from error
            except BaseException:
                self._end()  # its answer would be taken for that to the next question
                raise

    def close(self) -> None:
        """End it; the next question starts another one."""
        with self._lock:
            self._end()

    def leave_to_parent(self) -> None:
        """In a fork: the process, and whoever asks it at this moment, are the parent's."""
        process, self._process = self._process, None
        for pipe in () if process is None else (process.stdin, process.stdout):
            cast("io.BufferedWriter", pipe).raw.close()  # what the parent was writing is not ours

    def _start(self) -> None:
        require("tensorflow", "a remote file, or a transform written for TensorFlow,")
        # Users' functions may print to this descriptor; what TensorFlow prints is dropped.
        screen = os.dup(2)
        try:
            self._process = start(
                "autoloader.pipeline.graph.answers",
                [str(screen)],
                changes={"CUDA_VISIBLE_DEVICES": "-1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(screen,),
            )
        finally:
            os.close(screen)
        self._path = list(sys.path)

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self._process, name)
        return pipe

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError), _without_sigpipe():
                    pipe.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


process = TensorFlowProcess()
atexit.register(process.close)


def send(pipe: IO[bytes], message: object) -> None:
    """Write one message into a pipe between processes of this package."""
    with _without_sigpipe():
        pipe.write(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        pipe.flush()


@contextlib.contextmanager
def _without_sigpipe() -> Iterator[None]:
    """A pipe without a reader raises in this thread, whatever the program does at SIGPIPE."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        yield
    except BrokenPipeError:
        signal.sigtimedwait([signal.SIGPIPE], 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def receive(pipe: IO[bytes]) -> Any:
    """The next message of such a pipe.

    Raises:
        EOFError: the other end is gone.
    """
    try:
        return pickle.load(pipe)  # noqa: S301 written by ``send`` of our own process
    except pickle.UnpicklingError as error:
        raise EOFError(str(error)) from error
