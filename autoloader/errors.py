"""Every error a user can meet, and what each makes the command line exit with.

    AutoloaderError                      70  something went wrong inside
    ├── SpecError          (ValueError)   2  the pipeline spec says something that cannot be
    │   └── UnsupportedError              2  legal in the language, not built yet
    ├── ProfileError       (ValueError)   2  a host profile is missing, broken or for another host
    ├── KnobError          (ValueError)   2  a knob value or combination that may not run
    ├── UsageError         (ValueError)   2  a call or a command line that makes no sense
    ├── MissingExtraError  (ImportError)  2  a package of an extra is not installed
    ├── BudgetInfeasibleError             3  the RAM floor cannot be met
    ├── SourceError                       4  a dataset cannot be read
    └── PipelineError                    70  a background part failed; names dataset and stage
        └── WorkerError                  70  the loader's child is gone and cannot be brought back

Every error carries a remedy: one sentence that says what to do next.

Not here: translation of foreign errors (TensorFlow's, the operating system's); each package
translates at its own boundary with ``raise ... from``.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import Any

MAX_MESSAGE_CHARACTERS = 2_000
"""Of an error's text; a remedy may list what there is and take twice as many."""
MAX_VALUE_CHARACTERS = 160
"""Of a value that a message quotes."""
MOST_NAMES = 40
"""Names that a remedy lists."""


class AutoloaderError(Exception):
    """Base of all errors.

    Args:
        what: what happened, with the field path or place and the value found.
        remedy: what the user can do about it; never empty.
    """

    exit_code = 70

    def __init__(self, what: str, *, remedy: str) -> None:
        if not remedy:
            raise AssertionError("an error without a remedy is a dead end")
        self.what = shortened("\n".join(map(printable, what.split("\n"))), MAX_MESSAGE_CHARACTERS)
        self.remedy = shortened(printable(remedy), 2 * MAX_MESSAGE_CHARACTERS)
        super().__init__(self.what)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross to other processes whole (``multiprocessing`` pickles them)."""
        return _again, (type(self), self.what, self.remedy, self.__dict__)

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.remedy}"


def _again(kind: type[AutoloaderError], what: str, remedy: str, rest: dict[str, Any]) -> Any:
    """Make an error anew, after it was pickled."""
    error = kind(what, remedy=remedy)
    error.__dict__.update(rest)
    return error


class SpecError(AutoloaderError, ValueError):
    """The pipeline spec is wrong; ``path`` names the field.

    Args:
        what: message, which begins with the field's path and a colon if one field is wrong.
        remedy: action for the user; never empty.
        path: path of the field; ``None`` takes it from ``what``.
    """

    exit_code = 2

    def __init__(self, what: str, *, remedy: str, path: str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        field, colon, _ = what.partition(": ")
        named = field if colon and " " not in field else ""
        self.path = named if path is None else path


class UnsupportedError(SpecError):
    """The spec language knows this, the library does not do it yet."""


class ProfileError(AutoloaderError, ValueError):
    """A host profile cannot be found, read or used."""

    exit_code = 2


class KnobError(AutoloaderError, ValueError):
    """A knob or a combination of knobs that would not run."""

    exit_code = 2


class UsageError(AutoloaderError, ValueError):
    """Arguments that make no sense together."""

    exit_code = 2


class MissingExtraError(AutoloaderError, ImportError):
    """A package is missing that only an extra of the installation brings."""

    exit_code = 2


class BudgetInfeasibleError(AutoloaderError):
    """Even the smallest knobs would cross the RAM floor."""

    exit_code = 3


class SourceError(AutoloaderError):
    """A dataset is missing, broken or too corrupt to go on; ``dataset`` names it.

    Args:
        what: message, which begins with "dataset NAME: " where the caller knows the dataset.
        remedy: action for the user; never empty.
        dataset: name of the dataset; "" takes it from ``what``.
    """

    exit_code = 4
    foreign = False
    """Whether the files are no dataset, but another program's: weights, say."""

    def __init__(self, what: str, *, remedy: str, dataset: str = "") -> None:
        super().__init__(what, remedy=remedy)
        named = re.match("dataset (?:'([^']+)'|(.+?): )", what)
        self.dataset = dataset or (named[1] or named[2] if named else "")


class PipelineError(AutoloaderError):
    """A background part failed; ``dataset`` and ``stage`` say which."""

    def __init__(self, what: str, *, remedy: str, dataset: str = "", stage: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.dataset = dataset
        self.stage = stage


class WorkerError(PipelineError):
    """The loader's child died or hung and could not be brought back."""


def as_fault(error: BaseException, stage: str, dataset: str = "") -> AutoloaderError:
    """Error that the trainer gets for a background part's exception; our own errors as they are."""
    if isinstance(error, AutoloaderError):
        return error
    where = f"dataset {dataset!r}, stage {stage!r}" if dataset else f"stage {stage!r}"
    what = f"{where}: {type(error).__name__}: {error}"
    remedy = "this is a fault of the loader; please report it with this message"
    if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
        remedy = "free memory, or lower batch.size or the knob ring_slots"
    fault = PipelineError(what, remedy=remedy, dataset=dataset, stage=stage)
    fault.__cause__ = error
    return fault


def printable(text: str) -> str:
    """``text`` with control characters as escapes: a terminal obeys what it is sent."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, most: int) -> str:
    """``text`` in at most so many characters; what is longer loses its middle."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def shown(value: Any) -> str:
    """A value as a message quotes it: escaped, and not too long to read."""
    try:
        return shortened(repr(value), MAX_VALUE_CHARACTERS)
    except (RecursionError, ValueError):  # an integer of more digits than Python writes
        return f"a {type(value).__name__}"


def many(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_our_words(message: str) -> str:
    """A rule of pydantic's about a value, as "it should be at least 1"."""
    words = re.sub(", (unable|got) .*", "", message).replace("Input should be", "it should be")
    words = words.replace("a valid integer", "an integer")
    words = words.replace("greater than or equal to", "at least")
    return words.replace("less than or equal to", "at most")


def nearest(word: str, known: Iterable[str]) -> str:
    """A ready clause that names the closest known word, or lists them all when none is close."""
    import difflib  # in the failing case only: each process of a run would hold it

    names = [str(name) for name in known]
    holding = [name for name in names if len(word) > 3 and word in name]
    close = difflib.get_close_matches(word, holding or names, n=1, cutoff=0 if holding else 0.65)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(sorted(names)[:MOST_NAMES])
    return f"choose one of: {listed}{more}" if names else "nothing is allowed here"
