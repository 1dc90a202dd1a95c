"""The database that keeps studies: its URL, and its errors in the user's words.

Not here: what a study keeps there (``study``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autoloader.errors import UsageError


def sqlite_url(path: Path) -> str:
    """The storage URL of an SQLite file, whose directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def storage_url(url: str) -> str:
    """``url`` as SQLAlchemy wants it; PostgreSQL goes through psycopg.

    Raises:
        UsageError: it is no URL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(
            f"--storage {url!r} is not a storage URL",
            remedy='write "sqlite:////absolute/path.db" or "postgresql://user:password@host/name"',
        ) from error
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def shown_url(url: str) -> str:
    """``url`` without its password."""
    return make_url(url).render_as_string(hide_password=True)


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Translates errors of the storage; they name it without its password.

    Optuna's warnings that heartbeat and stale trials are experimental are left out.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        first_line = str(error).splitlines()[0]
        raise UsageError(
            f"the study's storage {shown_url(url)} cannot be used: {first_line}",
            remedy="name a storage that can be reached and written with --storage",
        ) from error
    except ImportError as error:
        raise UsageError(
            f"the study's storage {shown_url(url)} needs a driver that is not here: {error}",
            remedy="for PostgreSQL: pip install 'autoloader-rlds[postgresql]'",
        ) from error
