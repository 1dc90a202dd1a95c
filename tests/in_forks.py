"""Runs of a script that are processes of their own, and import what they need once together.

Importing torch and a trainer takes seconds, and a test of several runs needs nothing of that anew.
The script forks behind its imports, before it has a thread.
"""

import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

_FORK = multiprocessing.get_context("fork")

Run = tuple[ForkProcess, Connection]


def started(main: Callable[..., Any], *arguments: Any) -> Run:
    """A fork that calls ``main``."""
    reading, writing = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=lambda: writing.send(main(*arguments)))
    process.start()
    writing.close()
    return process, reading


def answer(run: Run) -> Any:
    """What ``main`` gave; waits for the end of its process.

    Raises:
        EOFError: it raised, and has said so on stderr.
    """
    process, reading = run
    found = reading.recv()
    process.join()
    return found


def one_by_one(main: Callable[..., Any], runs: Iterable[Iterable[Any]]) -> list[Any]:
    """What ``main`` gives with each of ``runs``, one behind the other."""
    return [answer(started(main, *arguments)) for arguments in runs]


def together(main: Callable[..., Any], runs: Iterable[Iterable[Any]]) -> list[Any]:
    """What ``main`` gives with each of ``runs``, which all run at the same time.

    Raises:
        EOFError: one of them raised; the others are killed.
    """
    every = [started(main, *arguments) for arguments in runs]
    try:
        return [answer(run) for run in every]
    except EOFError:
        for process, _ in every:
            process.kill()  # it waits for the one that raised
        raise
