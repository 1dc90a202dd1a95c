"""The extras of an installation: which package each brings, and what to say where one is missing.

The core reads local data by index, plans, measures and knows profiles. Everything else is imported
where it is used, inside ``needs``, so that a missing package is asked for by its extra's name.

Not here: versions (``pyproject.toml``, whose extras a test holds against ``EXTRA_OF``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from traceback import walk_tb

from autoloader.errors import MissingExtraError

EXTRA_OF: Mapping[str, str] = {
    "torch": "torch",
    "kornia": "torch",
    "lightning": "lightning",
    "tensorflow": "stream",
    "tensorflow_datasets": "stream",
    "optuna": "tune",
    "sqlalchemy": "tune",
    "jinja2": "report",
    "matplotlib": "report",
    "pyarrow": "lerobot",
    "av": "lerobot",
    "h5py": "hdf5",
    "prometheus_client": "metrics",
    "jax": "jax",
    "ray": "ray",
    "botocore": "remote",
    "gcsfs": "remote",
    "huggingface_hub": "remote",
}
"""Modules that the core does without: the extra that brings each."""


@contextmanager
def needs(purpose: str, *, extra: str = "") -> Iterator[None]:
    """Import what extras bring inside; a package that is missing is asked for by its extra's name.

    Args:
        purpose: purpose of the packages, as in "the tuner".
        extra: an extra that brings more than the missing package, and is meant.

    Raises:
        MissingExtraError: a package of ``EXTRA_OF`` is not installed, or does not fit the packages
            beside it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            raise  # an installation that is broken, not one that is smaller
        if missing != error.name and is_installed(missing):
            raise MissingExtraError(
                f"{purpose} needs {missing}, and its installation is incomplete: {error}",
                remedy=f"run `pip install --force-reinstall {missing.replace('_', '-')}`",
            ) from error
        raise _missing(missing, purpose, extra) from error
    except MissingExtraError:
        raise
    except ImportError as error:
        broken = _refuses(error)
        if broken is None:
            raise
        raise MissingExtraError(
            f"{purpose} needs {broken}, which cannot be imported here: {error}",
            remedy=f"run `pip install 'autoloader-rlds[{extra or EXTRA_OF[broken]}]'` with a "
            f"version of {broken} that fits the other packages (see `pip check`)",
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Import TensorFlow inside: its libraries tell stderr that there is no GPU, whatever is set."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(nowhere)
        os.close(stderr)


def _refuses(error: ImportError) -> str | None:
    """The package of ``EXTRA_OF`` whose own import raised, as where it wants another NumPy."""
    for frame, _ in walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name in EXTRA_OF:
            return name
    return None


def is_installed(module: str) -> bool:
    """True if a package is there to import; imports nothing."""
    return find_spec(module) is not None


def require(module: str, purpose: str, *, instead: str = "") -> None:
    """Refuse at once what would fail later for a missing package; imports nothing.

    Args:
        module: name of a module of ``EXTRA_OF``.
        purpose: purpose of the module, as in "the tuner".
        instead: another way out, as the end of a sentence: 'or use output="numpy"'.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if not is_installed(module):
        raise _missing(module, purpose, instead=instead)


def _missing(module: str, purpose: str, extra: str = "", instead: str = "") -> MissingExtraError:
    """The error for a package that is not installed."""
    way_out = f", {instead}" if instead else ""
    return MissingExtraError(
        f"{purpose} needs {module}, which is not installed",
        remedy=f"run `pip install 'autoloader-rlds[{extra or EXTRA_OF[module]}]'`{way_out}",
    )
