"""Finds and calls the function that a transform names; every way it can fail becomes a reason.

Theory of operation. A function is named ``module:function``. It is imported in the process that
calls it, on the import path of the trainer's process. The command line adds the working directory
and the spec's folder to that path (``permit``), but only once a spec declares a transform: with a
spec without one, nothing that lies beside it is ever imported. ``refuse`` has every transform
refused. A function is identified by a hash of its module's file, its arguments and the version that
the spec gives it, so that nothing has to be imported to tell whether saved results are still valid.

A caller turns the library's episode (NumPy arrays) into what the framework's functions take, and
their result back. The caller for NumPy is here. The one for TensorFlow is in
``pipeline.graph.user_functions`` and registers itself in ``CALLERS`` where a graph is built.
Elsewhere ``formats.tensorflow_process`` runs such functions, so that indexing and planning import
no TensorFlow.

Functions are called one at a time: they need not be thread-safe.

Not here: what an episode is (``rlds``), records (``transform``).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import json
import operator
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoloader.errors import SpecError
from autoloader.formats import tensorflow_process
from autoloader.host.supervision.start import extend_import_path
from autoloader.spec import TransformSpec

Caller = Callable[[Callable[..., Any], dict[str, Any], int, Mapping[str, Any]], Any]
"""(function, episode, its steps, keyword arguments) → what the function gave, as NumPy arrays."""


class FunctionFailedError(Exception):
    """A transform could not be found or raised; the message says what. Internal: a reason."""


def _call_numpy(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    del steps
    return function(episode, **kwargs)


CALLERS: dict[str, Caller] = {"numpy": _call_numpy}
calling = threading.RLock()
_folders: tuple[str, ...] = ()
_refused = False


def permit(*folders: str) -> None:
    """Transforms may run; their modules are looked for in these folders too, behind all others."""
    global _folders, _refused
    _folders, _refused = folders, False


def refuse() -> None:
    """From now on no function that a spec names is imported or called in this process."""
    global _refused
    _refused = True


def function_identity(spec: TransformSpec, *, where: str, field: str | None = None) -> str:
    """A hash of all that decides what a transform gives for a record; imports nothing of it.

    Args:
        spec: the dataset's ``transform`` block.
        where: path of the dataset in the spec.
        field: path of the function in the spec; ``None``: that of the dataset's transform.

    Raises:
        SpecError: its module cannot be found, or has no source, or transforms are refused.
    """
    module = spec.call.partition(":")[0]
    field = field or f"{where}.transform.call"
    if _refused:
        raise SpecError(
            f"{field}: the spec asks to run the function {spec.call!r}, and --no-transforms runs "
            "none",
            remedy="read that function, then leave --no-transforms out, or take it out of the spec",
            path=field,
        )
    extend_import_path(_folders)
    try:
        importlib.invalidate_caches()
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise _not_found(spec, field, str(error)) from error
    except Exception as error:  # the package above it is the user's code
        raise _not_found(spec, field, f"{type(error).__name__}: {error}") from error
    if found is None or found.origin is None:
        raise _not_found(spec, field, f"there is no module {module!r}")
    try:
        source = Path(found.origin).read_bytes()
    except OSError as error:
        raise _not_found(spec, field, f"{found.origin}: {error.strerror or error}") from error
    said = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(said.encode() + b"\0" + source).hexdigest()


def _not_found(spec: TransformSpec, field: str, reason: str) -> SpecError:
    return SpecError(
        f"{field}: {spec.call!r} cannot be imported: {reason}",
        remedy="put its file where this Python imports from (PYTHONPATH, an installed package, or "
        "the folder of the script)",
        path=field,
    )


def call_here(spec: TransformSpec, caller: Caller, episode: dict[str, Any], steps: int) -> Any:
    """Call a transform on an episode in this process; its result as NumPy arrays.

    Raises:
        FunctionFailedError: it cannot be found, or raised.
    """
    with calling:
        function = _function(spec.call)
        try:
            return caller(function, episode, steps, json.loads(json.dumps(dict(spec.kwargs))))
        except Exception as error:  # the user's code: one bad episode is that episode's
            raise FunctionFailedError(f"{spec.call} raised {_told(error)}") from error


@functools.lru_cache(maxsize=256)
def _function(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # importing runs the user's code
        raise FunctionFailedError(f"{call} cannot be imported: {_told(error)}") from error
    if not callable(found):
        raise FunctionFailedError(f"{call} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _told(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}{place}"


# -- frameworks that this process does not import ------------------------------------------------


def ask_elsewhere(question: object) -> Any:
    """Ask the process that runs TensorFlow.

    Raises:
        FunctionFailedError: the process ended before it answered.
    """
    try:
        return tensorflow_process.process.ask(question)
    except tensorflow_process.ProcessEndedError as error:
        raise FunctionFailedError("the process that runs TensorFlow transforms ended") from error


def prepare(framework: str) -> None:
    """Have the process started that functions of ``framework`` need, if they need one.

    Raises:
        FunctionFailedError: the process ended before it answered.
    """
    if framework not in CALLERS:
        ask_elsewhere(("prepare", None, ()))
