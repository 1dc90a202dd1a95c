"""Starts a process of the library: no fork, no main guard, and an import path of its own.

Theory of operation. ``python -m module`` would import from the working directory before anything
else, and so does a ``PYTHONPATH`` with an empty entry: a file ``types.py`` or ``sitecustomize.py``
that happens to lie there would run. So a process is started by ``boot`` with ``-P``, and is told
where to import from: the standard library, then the import path of the process that starts it, and
at the very end the working directory and the script's folder, where that process has them.
Installed packages (a virtual environment's, the user's own) are found as in any Python; what else
the user's ``PYTHONPATH`` names is meant, and stays (``-I`` would drop both).

The C library copies what is as large as a frame past the processor's caches there
(``docs/adr/0027-copies-past-the-caches.md``).

Not here: what runs there, and watching it (``supervisor``).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoloader.errors import WorkerError
from autoloader.host.threads import MORE_THREADS

_BOOT = str(Path(__file__).with_name("boot.py"))
_PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold"
"""From so many bytes on a copy goes past the caches; where it is not known it is ignored."""
_FRAME_BYTES = 128 * 2**10
"""Frames from 224×224 on are larger. What TensorFlow copies and then reads mostly is not."""
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


def import_path() -> list[str]:
    """The import path of this process, in the order in which another one is to look."""
    return ordered_path(sys.path, standard_library=str(Path(os.__file__).parent), last=_last())


def ordered_path(
    entries: Sequence[str], *, standard_library: str, last: Sequence[str]
) -> list[str]:
    """``entries`` with the standard library first and the folders ``last`` at the end, each once.

    Args:
        entries: an import path; "" is the working directory.
        standard_library: folder of the standard library.
        last: folders that must not shadow what is installed; the first of them is the working
            directory.
    """
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    found: dict[str, int] = {}
    for entry in entries:
        place = entry or (last[0] if last else "")
        if not place:
            continue
        with contextlib.suppress(OSError):  # the working directory is gone
            place = str(Path(place).absolute())
            if place == standard_library or Path(place).name in (archive, "lib-dynload"):
                found[place] = 0
            else:
                found[place] = 2 if place in last else 1
    return sorted(found, key=found.__getitem__)


def extend_import_path(entries: Sequence[str]) -> None:
    """Look in another process's import path too, behind our own."""
    sys.path.extend(entry for entry in entries if entry not in sys.path)


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs a module of this package; it needs ``environment``."""
    return [sys.executable, *_SAFE_PATH, _BOOT, module, *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for ``command``, with ``changes``."""
    last = _last()
    named = [str(Path(entry).absolute()) for entry in _python_path() if entry and last]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in named if entry not in last),
        "AUTOLOADER_IMPORT_PATH": json.dumps(import_path()),
        "GLIBC_TUNABLES": tunables(os.environ.get("GLIBC_TUNABLES", "")),
        **changes,
    }


def start(
    module: str,
    arguments: Sequence[str] = (),
    *,
    changes: Mapping[str, str] | None = None,
    **popen: Any,
) -> subprocess.Popen[Any]:
    """Start a module of this package as a process.

    Args:
        module: full name of the module to run.
        arguments: of its command line.
        changes: changes of the environment variables.
        popen: further arguments of ``subprocess.Popen``.

    Raises:
        WorkerError: the kernel starts no further process.
    """
    try:
        return subprocess.Popen(
            command(module, arguments), env=environment(**(changes or {})), **popen
        )
    except (BlockingIOError, MemoryError) as error:
        raise WorkerError(
            f"no process can be started for {module}: {error}", remedy=MORE_THREADS
        ) from error


def tunables(own: str) -> str:
    """The user's settings of the C library, and ours, but for one that the user has set."""
    if _PAST_CACHES in own:
        return own
    return ":".join(filter(None, (own, f"{_PAST_CACHES}={_FRAME_BYTES}")))


def _python_path() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _last() -> list[str]:
    """The working directory and the folder of the script, where there are any."""
    folders = []
    with contextlib.suppress(OSError):
        folders.append(str(Path.cwd()))
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and folders:
        folders.append(str(Path(folders[0], script).parent))
    return folders
