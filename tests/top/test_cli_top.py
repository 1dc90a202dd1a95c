"""``autoloader top`` on a loader that runs, and on what is not there."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

from command_lines import Cli
from moments import Look

from autoloader import AutoLoader
from autoloader.telemetry.statistics import Statistics


def test_top_shows_a_running_loader_once(running: AutoLoader, look: Look, cli: Cli):
    moment = look(lambda one: one.limited_by != "")
    shown = cli("top", "--once").out
    assert moment.run in shown
    assert "limits this run" in shown
    assert "the loader costs you" in shown


def test_top_tells_scripts_what_a_snapshot_holds(look: Look, cli: Cli):
    moment = look(lambda one: one.phase == "running")
    for name in (moment.run, moment.run[:-3], str(moment.worker_pid), str(os.getpid())):
        (told,) = cli.json("top", name)["runs"]
        assert Statistics.from_dict(told).run == moment.run


def test_a_run_that_is_not_there_is_refused_with_those_that_are(look: Look, cli: Cli):
    moment = look(lambda one: True)
    error = cli.json("top", "another", code=2)["error"]
    assert "no running loader is called 'another'" in error["what"]
    assert moment.run in error["what"]


def test_top_follows_a_run_in_a_terminal_and_leaves_it_as_it_was(look: Look):
    moment = look(lambda one: one.phase == "running")
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "autoloader", "top", moment.run]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=surroundings) as top:
        os.close(terminal)
        shown = b""
        while shown.count(moment.run.encode()) < 2:  # two frames, one over the other
            shown += os.read(screen, 1 << 16)
        top.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # its end closes the terminal
            while data := os.read(screen, 1 << 16):
                shown += data
        assert top.wait(60) == 0
    os.close(screen)
    assert b"\x1b[?1049h" in shown
    assert shown.index(b"\x1b[?1049l") > shown.index(b"\x1b[?1049h")
    assert b"Traceback" not in shown
