"""The line between child and parent: what is sent arrives, and its end is noticed."""

import json
import os
import signal
import subprocess
import sys

CHILD = """
import sys, time
from autoloader.tune.trial import TrialProgress, progress_to
with progress_to(int(sys.argv[1])) as tell:
    tell(TrialProgress(1, 2.5))
    time.sleep(600)
"""


def test_a_child_tells_its_progress_and_ends_when_the_parent_is_killed():
    """A parent, killed without a chance to clean up; its child tells by closing a pipe."""
    seen, held = os.pipe()
    parent = (
        "import subprocess, sys, time\n"
        "from multiprocessing import Pipe\n"
        "ours, theirs = Pipe()\n"
        f"child = subprocess.Popen([sys.executable, '-c', {CHILD!r}, str(theirs.fileno())],\n"
        f"    pass_fds=[theirs.fileno(), {held}], start_new_session=True)\n"
        "theirs.close()\n"
        "print(ours.recv_bytes().decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], pass_fds=[held], stdout=subprocess.PIPE
    ) as process:
        os.close(held)
        assert json.loads(process.stdout.readline()) == {"batches": 1, "samples_per_s": 2.5}
        process.send_signal(signal.SIGKILL)
        assert os.read(seen, 1) == b"", "the pipe closes when both have ended"
        os.close(seen)


def test_a_child_whose_parent_is_gone_before_it_began_ends_at_once():
    ours, theirs = os.pipe()
    os.close(theirs)
    child = [sys.executable, "-c", CHILD, str(ours)]
    assert subprocess.run(child, pass_fds=[ours], check=False).returncode == 70
    os.close(ours)
