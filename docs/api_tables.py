"""Tables of the API page: names of the front door, members and arguments, from the docstrings.

Not here: pages and their other tables (``check``).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import autoloader

_SPECIAL = {"__iter__": "for … in", "__len__": "len()"}
_ARGUMENT = re.compile(r"^    ((?:\w+, )*\w+): ")


def names_table(_: str) -> Iterator[tuple[str, ...]]:
    """Every name of the front door, and the first sentence of its documentation."""
    yield ("name", "is")
    for name in autoloader.__all__:
        if name != "__version__":
            yield (f"`{name}`", _first_sentence(getattr(autoloader, name)))


def members_table(name: str) -> Iterator[tuple[str, ...]]:
    """What a class has for its users; ``name`` is a class of the front door or of a subpackage."""
    yield ("member", "does")
    own = [one for one in reversed(_named(name).__mro__) if one.__module__.startswith("autoloader")]
    for member, value in {k: v for one in own for k, v in vars(one).items()}.items():
        if member in _SPECIAL:
            yield (f"`{_SPECIAL[member]}`", _first_sentence(value))
        elif not member.startswith("_"):
            plain = value.__func__ if isinstance(value, classmethod) else value
            if inspect.isfunction(plain):
                yield (f"`{member}({_parameters(plain)})`", _first_sentence(plain))
            elif isinstance(plain, property):
                yield (f"`{member}`", _first_sentence(plain))


def arguments_table(name: str) -> Iterator[tuple[str, ...]]:
    """Arguments of a class or function: defaults from its signature, words from ``Args:``."""
    found = _named(name)
    yield ("argument", "default", "meaning")
    words = _documented(found)
    for parameter in inspect.signature(found).parameters.values():
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        if parameter.kind is parameter.VAR_KEYWORD:
            if parameter.name not in words:
                continue
            default = ""
        yield (f"`{parameter.name}`", default, words.get(parameter.name, ""))


def _named(name: str) -> Any:
    *packages, last = name.split()
    home = importlib.import_module(".".join(["autoloader", *packages]))
    return getattr(home, last)


def _parameters(function: Any) -> str:
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in ("self", "cls"):
            stars = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}
            has = "" if parameter.default is parameter.empty else "=…"
            shown.append(f"{stars.get(parameter.kind, '')}{parameter.name}{has}")
    return ", ".join(shown)


def _first_sentence(value: Any) -> str:
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return _plain(re.split(r"(?<=[a-z`)\]])\. (?=[A-Z])", paragraph)[0].rstrip("."))


def _documented(value: Any) -> dict[str, str]:
    """Argument → what ``Args:`` of a docstring says of it; names that share a line share words."""
    text = inspect.getdoc(value) or ""
    block = text.partition("Args:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        begins = _ARGUMENT.match(line)
        if begins is not None:
            names = begins[1].split(", ")
            line = line[begins.end() :]
        for name in names:
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: _plain(words) for name, words in found.items()}


def _plain(words: str) -> str:
    return words.replace("``", "`")
