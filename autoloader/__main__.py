"""``autoloader`` and ``python -m autoloader``: the command line."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``cli.app.main``, and end as it does where Ctrl-C comes while it is imported."""
    try:
        from autoloader.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
