"""``autoloader.tune`` and ``python -m autoloader.tune``: the subcommand ``tune`` under two names.

The one import of ``cli`` from below it: both names must read arguments, show errors and exit as
``autoloader tune`` does, and the rules for that live there.

Not here: the command (``cli.tune``), the study (``offline``).
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run ``autoloader tune`` with this process's arguments and give its exit code."""
    from autoloader.__main__ import main as autoloader

    return autoloader(["tune", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
