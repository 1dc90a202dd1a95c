"""Another user of the machine binds, connects to and floods the socket of the loader's child."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from leftovers import until_let_go
from rlds_files import png, write_steps
from strangers import needs_second_user, stranger

from autoloader.host.files import runtime_folder
from autoloader.host.supervision import Supervisor
from autoloader.pipeline.messages import Hello, Wire
from autoloader.process.discovery import find_or_start, is_up, socket_name
from autoloader.process.ranks import Neighbours

pytestmark = needs_second_user

END_S = 20.0
HOLDS = """
held = socket.socket(socket.AF_UNIX)
held.bind(sys.argv[1].replace("@", chr(0), 1))
LISTEN
print("ready", flush=True)
sys.stdin.read()
"""
FLOODS = """
name, count, kept = sys.argv[1].replace("@", chr(0), 1), int(sys.argv[2]), []
print("ready", flush=True)
while count:
    count -= 1
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(1.0)
    with contextlib.suppress(OSError):
        one.connect(name)
        kept.append(one)
    del kept[:-50]
print("done", flush=True)
sys.stdin.read()
"""
TRAINS = """
import sys
from autoloader import AutoLoader
with AutoLoader(sys.argv[1], output="numpy", ram_floor="64MiB") as loader:
    batches = (batch for _ in range(10**6) for batch in loader)
    for _ in sys.stdin:
        next(batches)
        print(loader.statistics().worker_pids[0], flush=True)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    written = write_steps(tmp_path, [[8] * 4], encode=png)
    file = tmp_path / "mix.yaml"
    file.write_text(
        "batch: {size: 2}\ncameras: {primary: {size: [16, 16]}}\n"
        f"datasets: [{{name: arm, path: {written.path}, images: {{primary: observation/image}}}}]\n"
    )
    return file


@contextlib.contextmanager
def trainer(spec: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, str]]:
    """A training, its child, and the name of the child's socket."""
    with subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(spec)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            child = psutil.Process(one_batch(process))
            names = Path("/proc/net/unix").read_text().split()
            name = next(word for word in names if word.startswith(f"@autoloader-{process.pid}-"))
            yield process, child, name
        finally:
            process.kill()


def one_batch(process: subprocess.Popen[str]) -> int:
    """Have the training take a batch; the process id of its loader's child."""
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(END_S)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_the_child_ends_with_its_trainer_while_strangers_wait_at_its_socket(spec: Path):
    with trainer(spec) as (process, child, name), stranger(FLOODS, name, str(10**9)):
        process.send_signal(signal.SIGKILL)
        assert gone(child)


def test_two_thousand_connections_of_a_stranger_cost_nothing_that_stays(spec: Path):
    with trainer(spec) as (process, child, name):
        with stranger(FLOODS, name, "200") as first:
            assert first.stdout.readline() == "done\n"
        log = next(one for one in Path(f"/proc/{child.pid}/fd").iterdir() if one.name == "2")
        before = child.memory_info().rss, child.num_fds(), child.num_threads()
        with stranger(FLOODS, name, "2000") as second:
            assert second.stdout.readline() == "done\n"
        after = child.memory_info().rss, child.num_fds(), child.num_threads()
        assert after[0] - before[0] < 8 * 2**20
        assert all(now <= then + 2 for now, then in zip(after[1:], before[1:], strict=True))
        assert log.read_text().count("was refused") == 1
        assert one_batch(process) == child.pid


def hello_of(wire: Wire) -> int:
    hello = wire.receive(END_S)
    assert isinstance(hello, Hello)
    return hello.pid


@pytest.mark.parametrize("listen", ["held.listen()", "held.listen(0)", ""])
def test_a_name_that_a_stranger_has_bound_is_gone_around_by_all_ranks(listen: str):
    pair = Neighbours(2, f"strangers-{os.getpid()}-{listen}")
    supervisors = [
        Supervisor("the child", "autoloader.process.worker", remedy="look") for _ in range(2)
    ]
    name = socket_name(pair).replace("\0", "@")
    with stranger(HOLDS.replace("LISTEN", listen), name):
        assert not is_up(pair)
        first = find_or_start(pair, [], supervisors[0])
        assert is_up(pair)
    # The stranger has left: the others still meet where the first one is.
    second = find_or_start(pair, [], supervisors[1])
    assert [one.process is not None for one in supervisors] == [True, False]
    assert supervisors[1].pid == supervisors[0].pid
    for wire in (first, second):
        until_let_go(wire)
    for one in supervisors:
        one.end()
        one.close()


def test_a_name_that_was_published_and_bound_by_a_stranger_is_gone_around_again():
    pair = Neighbours(2, f"strangers-{os.getpid()}-again")
    supervisor = Supervisor("the child", "autoloader.process.worker", remedy="look")
    base = socket_name(pair)
    published = runtime_folder() / f"{base[1:]}.socket"
    taken = HOLDS.replace("LISTEN", "held.listen()")
    with stranger(taken, base.replace("\0", "@")):
        find_or_start(pair, [], supervisor).close()
        supervisor.end()
        first = published.read_text()
        with stranger(taken, f"@{first}"):
            wire = find_or_start(pair, [], supervisor)
        assert published.read_text() != first
        assert hello_of(wire) == supervisor.pid
        wire.close()
        supervisor.end()
    supervisor.close()


def test_a_hello_of_this_user_is_waited_for_while_strangers_flood_the_socket():
    pair = Neighbours(2, f"strangers-{os.getpid()}-flood")
    supervisors = [
        Supervisor("the child", "autoloader.process.worker", remedy="look") for _ in range(2)
    ]
    with stranger(FLOODS, socket_name(pair).replace("\0", "@"), str(10**9)):
        wires = [find_or_start(pair, [], one) for one in supervisors]
        assert supervisors[1].process is None
        assert hello_of(wires[0]) == supervisors[0].pid
    for wire in wires:
        until_let_go(wire)
    for one in supervisors:
        one.end()
        one.close()
