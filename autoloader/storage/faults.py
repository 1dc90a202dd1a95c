"""What may go wrong with a file far away, as ``OSError``, in words that hold no secret.

A client's own text may hold a signed address, a token or a header. So none of it is kept: an error
here says what happened in words of this module, and names the path that the user wrote.

Not here: which exception of which client means what (``storage.clients``), who tries again
(``storage.patience``).
"""

from __future__ import annotations

import errno


class UnreachableError(OSError):
    """A remote file system does not answer now, after repetitions."""


class NoFileSystemError(OSError):
    """Nothing that is installed opens a path's scheme."""


class ChangedError(OSError):
    """An object is another one than it was when this run began."""


class LimitError(OSError):
    """A file, or the server that gives it, goes beyond a limit.

    Args:
        why: for people.
        path: of what.
        variable: the environment variable that lifts the limit.
    """

    def __init__(self, why: str, path: str, variable: str) -> None:
        super().__init__(errno.EFBIG, f"{why} ({variable} lifts the limit)", path)
        self.variable = variable


class PassingError(OSError):
    """It failed, and may succeed in a moment.

    Args:
        why: for people.
        path: of what.
        after_s: the server asks for so long a pause; ``None`` where it does not say.
        busy: the server asks for fewer requests.
        lost: no connection: when one can be had again, all that wait may ask again.
        wrong: the server answers, and not as it should: it is asked a few times more at most.
    """

    def __init__(
        self,
        why: str,
        path: str,
        *,
        after_s: float | None = None,
        busy: bool = False,
        lost: bool = False,
        wrong: bool = False,
    ) -> None:
        super().__init__(errno.EAGAIN, why, path)
        self.after_s = after_s
        self.wrong = wrong
        self.busy, self.lost = busy, lost


def missing(path: str) -> FileNotFoundError:
    """There is no such object."""
    return FileNotFoundError(errno.ENOENT, "there is no such file or directory", path)


def refused(path: str, status: int | None = None) -> PermissionError:
    """The store does not let this user read it."""
    told = "" if status is None else f" ({status})"
    return PermissionError(errno.EACCES, f"access is refused{told}", path)


def changed(path: str) -> ChangedError:
    """It was replaced, or deleted, while it was in use."""
    return ChangedError(errno.ESTALE, "it was changed or deleted since this run began", path)


def cut_off(path: str) -> PassingError:
    """Fewer bytes came than were to come."""
    return PassingError("the answer was cut off", path, wrong=True)


def nonsense(error: Exception, path: str) -> OSError:
    """An answer that says nothing that can be meant; nothing of its text is kept."""
    return OSError(errno.EIO, f"the server's answer makes no sense ({type(error).__name__})", path)


def of_status(status: int, path: str, after: str | None = None) -> OSError:
    """What an HTTP status means.

    Args:
        status: 400 or more.
        path: of what.
        after: the header ``Retry-After``.
    """
    if status in (404, 410):
        return missing(path)
    if status in (401, 403, 407):
        return refused(path, status)
    if status == 412:
        return changed(path)
    if status in (408, 425, 429) or status >= 500:
        busy = status in (429, 503)
        return PassingError(
            f"the server answers {status}", path, after_s=_seconds(after), busy=busy
        )
    return OSError(errno.EIO, f"the server answers {status}", path)


def _seconds(after: str | None) -> float | None:
    """``Retry-After`` in seconds; a date there is rare, and taken for nothing."""
    try:
        return None if after is None else max(0.0, float(after))
    except ValueError:
        return None
