"""What exceptions of the stores' own packages mean, in the words of ``remote.faults``.

Not here: exceptions of connections (``remote.clients.connections``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from autoloader.remote import faults


@contextlib.contextmanager
def meant(path: str) -> Iterator[None]:
    """Within it what a package raises is translated; nothing of its text is kept."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 whatever a package raises is translated here
        raise _translated(error, path) from None


def _translated(error: Exception, path: str) -> Exception:
    """What a package's exception means; one that is ours, as it is."""
    if isinstance(error, _OURS) or (type(error) is OSError and error.filename == path):
        return error
    if isinstance(error, FileNotFoundError):
        return faults.missing(path)
    if isinstance(error, PermissionError):
        return faults.refused(path)
    status = getattr(error, "status", None) or getattr(error, "code", None)
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status >= 400:
        return faults.of_status(status, path)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"GoogleAuthError", "BotoCoreError"} and "Transport" not in type(error).__name__:
        return faults.refused(path)
    if kinds & _PASSING or isinstance(error, OSError | TimeoutError | EOFError):
        name = type(error).__name__
        return faults.PassingError(f"the connection failed ({name})", path)
    return error


_OURS = (faults.PassingError, faults.ChangedError, faults.UnreachableError)
_PASSING = {"ClientError", "HTTPClientError", "RequestException", "TransportError"}
