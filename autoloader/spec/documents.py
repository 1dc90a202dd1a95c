"""Reads YAML files that people write, and refuses one that crosses the limits below.

The limits bound what a broken or hostile file costs: what lies within them is read in seconds. A
mixture of 700 datasets does.

Not here: what a document means (``reading``, ``autoloader.profile``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError

from autoloader.spec.regular_files import DocumentError, read_regular

MAX_BYTES = 256 * 1024
"""Bytes of a YAML file."""
MAX_DEPTH = 64
"""Lists and mappings inside each other."""
MAX_VALUES = 50_000
"""Values in a YAML file; what an alias repeats counts at each place."""


class _LimitError(YAMLError):
    """A document crosses a limit."""


class _LimitedComposer(Composer):
    """Holds a document against the limits while it is parsed, before anything is built of it.

    The parser pays nothing for an alias, but building the values pays for everything that the alias
    repeats. So each finished node's size and height, with its aliases expanded, are remembered.
    They count again wherever an alias repeats the node.
    """

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._values = self._depth = self._height = 0
        self._finished: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        before, beside = self._values, self._height
        line = self.parser.peek_event().start_mark.line + 1
        self._values, self._depth, self._height = before + 1, self._depth + 1, 0
        node = None if self._depth > MAX_DEPTH else super().compose_node(parent, index)
        if node is None or self._depth + self._height > MAX_DEPTH:
            raise _LimitError(
                f"line {line}: lists and mappings lie more than {MAX_DEPTH} deep, which is the most"
            )
        if self._values > MAX_VALUES:
            raise _LimitError(
                f"line {line}: the file has more than {MAX_VALUES} values, which is the most "
                "(what an alias repeats counts each time)"
            )
        self._finished.setdefault(id(node), (self._values - before, self._height + 1))
        self._depth, self._height = self._depth - 1, max(beside, self._height + 1)
        return node

    def return_alias(self, a: Any) -> Any:
        if id(a) not in self._finished:
            raise _LimitError(f"line {a.start_mark.line + 1}: &{a.anchor} holds itself by an alias")
        values, height = self._finished[id(a)]
        self._values += values - 1
        self._height = height - 1
        return a


def read_yaml_file(path: str | Path) -> Any:
    """The plain values of a YAML file.

    Raises:
        DocumentError: it cannot be read, is no YAML, or crosses a limit.
    """
    try:
        content = read_regular(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise DocumentError(
            error.strerror or str(error), "give the path of a readable file"
        ) from error
    return parse_yaml(content)


def parse_yaml(text: str | bytes) -> Any:
    """The plain values of a YAML text.

    Raises:
        DocumentError: it is no YAML, or crosses a limit.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _LimitedComposer
    try:
        return yaml.load(text.decode("utf-8") if isinstance(text, bytes) else text)
    except _LimitError as error:
        raise DocumentError(str(error), "write it shorter and flatter") from error
    # Numbers and dates that Python cannot hold, and lists as keys, are told by Python's own errors.
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        raise DocumentError(
            f"it is no YAML: {' '.join(str(error).split())}", "mend the file's syntax"
        ) from error
