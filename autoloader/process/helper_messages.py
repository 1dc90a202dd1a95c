"""What the loader's child and the process that asks helpers on other hosts say to each other.

Not here: how messages cross (``process.messages``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoloader.process.messages import Message


@dataclass(frozen=True, slots=True)
class HelpersStart(Message):
    """Child → driver of helpers: what they read, where they are, and what they must agree with.

    ``identity`` is field → value, see ``sharing.identity``.
    """

    mixture: dict[str, Any]
    order: dict[str, Any]
    identity: dict[str, str]
    address: str
    ram_floor_bytes: int
    import_path: list[str]


@dataclass(frozen=True, slots=True)
class HelpersWanted(Message):
    """Child → driver: have so many helpers."""

    count: int


@dataclass(frozen=True, slots=True)
class HelperAsk(Message):
    """Child → driver: have a helper fill the batch of positions [start, stop)."""

    number: int
    span: list[int]


@dataclass(frozen=True, slots=True)
class HelperCopy(Message):
    """Child → driver: the answer goes into this slot."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class HelperCompare(Message):
    """Child → driver: is the answer the batch (``BatchMessage.plain``) that lies in its slot?"""

    number: int
    batch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HelperDrop(Message):
    """Child → driver: the answer is not wanted any more."""

    number: int


@dataclass(frozen=True, slots=True)
class HelperAnswer(Message):
    """Driver → child: a helper has filled a batch; ``check``: to be compared, not used."""

    number: int
    took_s: float
    check: bool


@dataclass(frozen=True, slots=True)
class HelperCopied(Message):
    """Driver → child: an answer is in its slot (``BatchMessage.plain``)."""

    number: int
    batch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HelperCompared(Message):
    """Driver → child: an answer was compared."""

    number: int
    same: bool


@dataclass(frozen=True, slots=True)
class HelpersLost(Message):
    """Driver → child: nobody fills these batches any more."""

    numbers: list[int]


@dataclass(frozen=True, slots=True)
class HelpersHere(Message):
    """Driver → child: so many helpers work; the cluster has processors for so many."""

    present: int
    possible: int
