"""``python -m autoloader`` is the ``autoloader`` command."""

from __future__ import annotations

from autoloader.cli.app import main

if __name__ == "__main__":
    raise SystemExit(main())
