"""Commands that run as processes of their own, to their end."""

import subprocess
import sys
from typing import Any


def ran(*command: object, code: int | None = 0, **own: Any) -> subprocess.CompletedProcess[str]:
    """A command that ended, with what it printed; the test fails unless with ``code``; None: any.

    Args:
        command: its words.
        code: its exit code.
        own: of ``subprocess.run``.
    """
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **own
    )
    assert code in (None, done.returncode), done.stdout[-4000:] + done.stderr[-4000:]
    return done


def python(*words: object, **own: Any) -> subprocess.CompletedProcess[str]:
    """The same of this interpreter."""
    return ran(sys.executable, *words, **own)
