"""``transform``: a user function that rewrites each episode before anything else sees it.

Not here: finding and calling it (``transforms.user_function``), what it is given and gives
(``transforms.rlds``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator

from autoloader.errors import shown
from autoloader.spec.block import Block, wrong

_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MOVE = "move it to a file that can be imported, and name it as my_lab.oxe:bridge"


def importable(call: Any) -> Any:
    """The name of a function as it is; refuses what another process could not import."""
    if callable(call):
        name = getattr(call, "__qualname__", type(call).__name__)
        raise wrong(f"{name} is a function, and the loader's child needs its name", _MOVE)
    if isinstance(call, str):
        if "lambda" in call:
            raise wrong(f"{shown(call)} is a lambda, which has no name to import", _MOVE)
        if call.partition(":")[0] == "__main__":
            raise wrong(f"{shown(call)} is in the script that runs, which no child imports", _MOVE)
        if not _CALL.fullmatch(call):
            raise wrong(f"{shown(call)} is no module:function", "write it as my_lab.oxe:bridge")
    return call


class TransformSpec(Block):
    """One episode in, one out, or ``None`` to drop it."""

    call: str = Field(description="module:function; fn(episode, **kwargs) -> episode | None")
    framework: Literal["numpy", "tensorflow"] = Field(
        "numpy", description="what its arrays are: NumPy's, or TensorFlow's eager tensors"
    )
    kwargs: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="keyword arguments of the function"
    )
    version: int = Field(
        1, ge=0, description="raise it where the function changes and its module does not"
    )

    @field_validator("call", mode="before")
    @classmethod
    def _can_be_imported_elsewhere(cls, call: Any) -> Any:
        return importable(call)
