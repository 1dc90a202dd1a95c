"""Runs the suite in several processes that share one collection: ``pytest --workers 4``.

Collecting imports TensorFlow and torch: 17 seconds of a processor, and a gigabyte. So the process
that collected forks its workers. Each takes the next file, in the order of the collection, and
sends its reports back. A fork keeps no threads, so a module that starts one when it is imported
cannot be tested this way; none does. A worker that ends by itself ends the run, as where a test
hangs and ``faulthandler`` ends its process.

Not here: processes that tests start (``in_forks``).
"""

import mmap
import os
import selectors
import sys
import traceback
import warnings
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

_NUMBER_BYTES = 4
_LOST = "the process that ran this test ended by itself; stderr may say why"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--workers``."""
    parser.addoption("--workers", type=int, default=0, help="processes that share the test files")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the files by several processes, where several are asked for."""
    option = session.config.option
    files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    count = min(option.workers, len(files))
    if count < 2 or option.collectonly or session.testsfailed:
        return None  # pytest's own loop
    queue = _queue_of(len(files))
    stop = mmap.mmap(-1, 1)
    workers = [_Worker(session, files, queue, stop, number) for number in range(count)]
    os.close(queue)
    try:
        _gather(session, workers, stop)
    finally:
        stop[0] = 1
        statuses = [os.waitpid(worker.pid, 0)[1] for worker in workers]
    if any(statuses) and not session.testsfailed:
        raise session.Failed(f"processes of the suite ended with {statuses}")
    return True


def _queue_of(count: int) -> int:
    """The reading end of a pipe that gives each number to one reader, and then ends."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(n.to_bytes(_NUMBER_BYTES, "little") for n in range(count)))
    os.close(writing)
    return reading


class _Worker:
    """One forked process, as its parent sees it.

    Attributes:
        pid: its process id.
        reports: what it sends: ("begins", item) and ("report", a report as plain data).
        running: the test that it runs; None between tests.
    """

    def __init__(
        self,
        session: pytest.Session,
        files: list[list[pytest.Item]],
        queue: int,
        stop: mmap.mmap,
        number: int,
    ) -> None:
        self.running: tuple[str, Any] | None = None
        self.reports, sending = Pipe(duplex=False)
        base = session.config._tmp_path_factory.getbasetemp()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and newer: of a fork beside BLAS' threads
            self.pid = os.fork()
        if self.pid:
            sending.close()
            return
        status = 1
        try:
            folder = base / f"worker-{number}"
            folder.mkdir(mode=0o700)
            session.config._tmp_path_factory._basetemp = folder
            _work(session, files, queue, stop, sending)
            status = 0
        except Exception:  # noqa: BLE001 the boundary of this process
            traceback.print_exc()
        finally:
            os._exit(status)  # nothing of the parent's may run here


def _work(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    queue: int,
    stop: mmap.mmap,
    sending: Connection,
) -> None:
    """Run files in a worker until none is left."""
    config, manager = session.config, session.config.pluginmanager
    manager.unregister(name="terminalreporter")
    capture = manager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are the parent's
    capture.start_global_capturing()
    capture.suspend_global_capture()
    manager.register(_Sender(config, sending))
    last = None
    while not stop[0] and (number := os.read(queue, _NUMBER_BYTES)):
        for last, behind in _with_next(files[int.from_bytes(number, "little")]):
            sending.send(("begins", (last.nodeid, last.location)))
            # The session goes on behind the last item: its fixtures stay.
            config.hook.pytest_runtest_protocol(item=last, nextitem=behind or session)
            if session.shouldstop or session.shouldfail or stop[0]:
                break
    if last is not None:
        ends = pytest.CallInfo.from_call(
            lambda: session._setupstate.teardown_exact(None), when="teardown"
        )
        if ends.excinfo is not None:
            report = pytest.TestReport.from_item_and_call(last, ends)
            config.hook.pytest_runtest_logreport(report=report)
    sending.send(("ends", None))


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


class _Sender:
    """Sends a worker's reports to the parent."""

    def __init__(self, config: pytest.Config, sending: Connection) -> None:
        self._config = config
        self._sending = sending

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        plain = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._sending.send(("report", plain))


def _gather(session: pytest.Session, workers: list[_Worker], stop: mmap.mmap) -> None:
    """Hand the workers' reports to pytest until all have ended."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.reports, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                if not _heed(session, key.data):
                    selector.unregister(key.fileobj)
                if session.shouldfail or session.shouldstop:
                    stop[0] = 1
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _heed(session: pytest.Session, worker: _Worker) -> bool:
    """Take one message of a worker; False where it has ended."""
    hook = session.config.hook
    try:
        what, told = worker.reports.recv()
    except EOFError:
        nodeid, location = worker.running or ("", ("", None, ""))
        report = pytest.TestReport(nodeid, location, {}, "failed", _LOST, "call")
        hook.pytest_runtest_logreport(report=report)
        session.shouldstop = session.shouldstop or "a process of the suite ended by itself"
        return False
    if what == "begins":
        worker.running = told
    elif what == "report":
        report = hook.pytest_report_from_serializable(config=session.config, data=told)
        hook.pytest_runtest_logreport(report=report)
    return bool(what != "ends")
