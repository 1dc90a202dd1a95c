"""The process that runs TensorFlow for processes that do not import it.

Theory of operation. Planning, indexing and the command line import no TensorFlow. Where they need
it (a user's function written for it, files on its file systems) they ask a process of its own:
``autoloader.pipeline.graph.answers``, started at the first question, one question at a time. It
ends when its socket is closed, or the process that asks ends.

Not here: what is asked (``formats.files``, ``samples.transforms.transform``), who answers
(``pipeline.graph.answers``).
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from typing import IO, Any, cast

from autoloader.host.extras import require
from autoloader.host.supervision import import_path, start, waited
from autoloader.host.threads import free_in_forks

_SAY_AFTER_S = 10.0
_END_S = 2.0

logger = logging.getLogger(__name__)


class TensorFlowProcess:
    """Answers questions; any thread may ask."""

    _link: socket.socket
    _answers: IO[bytes]

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
            EOFError: the process ended before it answered.
            MissingExtraError: there is no TensorFlow.
        """
        with self._lock:
            if self._process is None:
                self._start()
            try:
                if self._path != sys.path:
                    self._path = list(sys.path)
                    send(self._link, ("import path", import_path(), ()))
                send(self._link, question)
                while about and not select.select([self._link], [], [], _SAY_AFTER_S)[0]:
                    logger.warning("still waiting for %s", about)
                return receive(self._answers)
            except (OSError, EOFError) as error:
                self._end()
                raise EOFError("the process that runs TensorFlow ended") from error
            except BaseException:
                self._end()  # its answer would be taken for that to the next question
                raise

    def close(self) -> None:
        """End it; the next question starts another one."""
        with self._lock:
            self._end()

    def leave_to_parent(self) -> None:
        """In a fork: the process, and whoever asks it at this moment, are the parent's."""
        if self._process is not None:
            self._process = None
            cast("Any", self._answers).raw.close()  # a thread of the parent's may be reading it
            self._link.close()

    def _start(self) -> None:
        require("tensorflow", "a remote file, or a transform written for TensorFlow,")
        # Users' functions may print to this descriptor; what TensorFlow prints is dropped.
        screen = os.dup(2)
        self._link, theirs = socket.socketpair()
        self._link.settimeout(None)  # whatever socket.setdefaulttimeout says
        self._answers = self._link.makefile("rb")
        try:
            with theirs:
                self._process = start(
                    "autoloader.pipeline.graph.answers",
                    [str(screen)],
                    changes={"CUDA_VISIBLE_DEVICES": "-1"},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(screen,),
                )
        finally:
            os.close(screen)
        self._path = list(sys.path)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._answers.close()
            self._link.close()
            if not waited(process, _END_S):
                process.kill()
                process.wait()


process = TensorFlowProcess()
atexit.register(process.close)


def send(link: socket.socket, message: object) -> None:
    """Send a message between processes of this package, whatever the program does at SIGPIPE."""
    link.sendall(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL), socket.MSG_NOSIGNAL)


def receive(link: IO[bytes]) -> Any:
    """The next message of such a connection, read as a file.

    Raises:
        EOFError: the other end is gone.
    """
    try:
        return pickle.load(link)  # noqa: S301 written by ``send`` of our own process
    except pickle.UnpicklingError as error:
        raise EOFError(str(error)) from error
