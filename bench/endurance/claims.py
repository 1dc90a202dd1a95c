"""A claim: what is said of the loader, the figure measured here, and what is wanted of it.

Not here: the claims themselves (the package's other modules).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELD: dict[str, Any] = {"output": "numpy", "profile": "local_dev", "controller": False}
"""Knobs move where a check moves them, and nowhere else."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a person may choose.

    Attributes:
        reader: of the loaders that are disturbed.
        soak_s: how long the soak lasts.
    """

    reader: str = "stream"
    soak_s: float = 300.0

    @property
    def start(self) -> dict[str, Any]:
        """Knobs to begin with."""
        return {"ring_slots": 8, "queue_samples": 32, "reader": self.reader}


@dataclass(frozen=True, slots=True)
class Claim:
    """One row.

    Attributes:
        claim: what is said.
        figure: what was found.
        wanted: what should be; "reported" where nothing is.
        met: whether it is; ``None`` where nothing is wanted.
    """

    claim: str
    figure: str
    wanted: str
    met: bool | None


Check = Callable[[Circumstances], list[Claim]]
