"""Reads spec files, and turns every fault into a ``SpecError`` that says what to do.

Reads YAML files that people write, and refuses one that crosses the limits below.

The limits bound what a broken or hostile file costs: what lies within them is read in seconds. A
mixture of 700 datasets does.

Not here: the language itself (``model``, ``fields``).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence, Set
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode
from ruamel.yaml.reader import ReaderError

from autoloader.errors import AutoloaderError, SpecError, nearest, shown
from autoloader.host.files import DocumentError, read_regular
from autoloader.host.units import expanded
from autoloader.spec.block import Block, adapter

_Type = TypeVar("_Type")

_NAMED = 3
"""Further wrong fields that a message names."""
_KEYS = 8
"""Keys of a block that a message names."""


def read_document(path: Path) -> dict[str, Any]:
    """The mapping that a spec file holds, as it is written.

    Raises:
        SpecError: the file cannot be read, is empty, is no YAML, or holds no mapping.
    """
    try:
        raw = read_yaml_file(path)
    except DocumentError as error:
        what, remedy = f"{path}: {error.what}", error.remedy
        if os.path.isdir(path):
            what = f"{path}: it is a directory, not a spec file"
        elif error.what.startswith("line "):
            what = f"{path}, {error.what}"
        if error.what == os.strerror(errno.EACCES):
            remedy = "give this user permission to read it, or give another path"
        elif not os.path.isdir(path) and os.path.isfile(f"{path}.yaml"):
            remedy = f"did you mean {path}.yaml?"
        elif os.path.isdir(path) or not (path.suffix or os.path.exists(path)):
            remedy = f"`autoloader init {quote(str(path))} -o mix.yaml` writes a spec of its data"
        elif not os.path.exists(path):
            remedy = "check the path; `autoloader init DATA -o mix.yaml` writes a spec"
        raise SpecError(what, remedy=remedy, path="") from None
    if not isinstance(raw, dict):
        holds = "is empty" if raw is None else f"holds {shown(raw)}, not keys with values"
        remedy = "write datasets: and cameras:, or let `autoloader init DATA_DIR` write the spec"
        raise SpecError(f"{path}: it {holds}", remedy=remedy, path="")
    return raw


def in_file(error: SpecError, path: Path) -> SpecError:
    """The same error with the spec file's name and, where the file has the field, its line."""
    parts, lines = re.findall(r"[^.\[\]]+", error.path), []
    with contextlib.suppress(OSError, ValueError, YAMLError):  # the file has changed meanwhile
        root = YAML(typ="safe", pure=True).compose(path.read_text(encoding="utf-8"))
        lines = _lines(root, parts + re.findall(r"unknown \w+ '([^']+)'", error.what))
        shared = _lines(root, ["defaults", *parts[2:]])
        lines = shared if parts[:1] == ["datasets"] and len(lines) <= len(shared) else lines
    where = f", line {lines[-1]}" if lines else ""
    return type(error)(f"{path}{where}: {error.what}", remedy=error.remedy, path=error.path)


def _lines(node: Any, parts: Sequence[str]) -> list[int]:
    """Line of each value on the way that ``parts`` name from a node, as far as there are any."""
    lines: list[int] = []
    for part in parts:
        for number, one in enumerate(node.value if isinstance(node, CollectionNode) else ()):
            key, inner = one if isinstance(one, tuple) else (one, one)
            fields = key.value if isinstance(key, MappingNode) else ()  # a dataset goes by its name
            names = [value.value for field, value in fields if field.value == "name"]
            if part in [*names, key.value if key is not inner else str(number)]:
                lines, node = [*lines, key.start_mark.line + 1], inner
                break
        else:
            break
    return lines


def completed(raw: Mapping[str, Any], fields: Set[str], folder: Path) -> dict[str, Any]:
    """The plain values of a spec, with ``defaults`` in each dataset and whole paths.

    Args:
        raw: what a spec file says.
        fields: fields of a dataset that ``defaults`` may set.
        folder: folder at which relative paths start.

    Raises:
        SpecError: the spec is no mapping, too deep, or its ``defaults`` say what no dataset may.
    """
    plain = _plain(raw)
    if not isinstance(plain, dict):
        raise SpecError(
            f"a spec is a mapping of keys to values, and this is {shown(raw)}",
            remedy="pass the keys of a spec file, such as {'datasets': […], 'cameras': {…}}",
        )
    if plain.get("augment", {}) is None:
        del plain["augment"]
    _apply_defaults(plain, fields)
    _resolve_paths(plain, folder)
    return plain


def _plain(value: Any, depth: int = 1) -> Any:
    if depth > MAX_DEPTH:
        raise SpecError(_TOO_DEEP, remedy="write it flatter; a value cannot hold itself")
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, depth + 1) for inner in value]
    return value


def _label(item: Any, position: int) -> str:
    return str(item["name"]) if isinstance(item, dict) and item.get("name") else str(position)


def _apply_defaults(plain: dict[str, Any], fields: Set[str]) -> None:
    """Fill each dataset from ``defaults``; mappings merge key by key, the dataset's own win."""
    defaults = plain.pop("defaults", None) or {}
    if not isinstance(defaults, dict):
        raise SpecError(
            f"defaults must be a block of keys and values, and is {shown(defaults)}",
            remedy="write fields that all datasets share, such as defaults: {data_dir: /data/oxe}",
        )
    for key in defaults:
        if key not in fields:
            raise SpecError(
                f"defaults.{key}: datasets have no field {key!r} that defaults may set",
                remedy=nearest(key, fields),
            )
    for dataset in datasets_of(plain):
        for key, value in defaults.items():
            if key == "data_dir" and "path" in dataset:
                continue
            if isinstance(value, dict) and isinstance(dataset.get(key), dict):
                dataset[key] = {**value, **dataset[key]}
            else:
                dataset.setdefault(key, value)


def datasets_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of datasets in the plain values of a spec, without what is none."""
    found = document.get("datasets")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _resolve_paths(plain: dict[str, Any], folder: Path) -> None:
    places: list[tuple[Any, str]] = [(plain.get("normalize"), "statistics")]
    for dataset in datasets_of(plain):
        keep = dataset.get("keep")
        ranges = keep.get("ranges") if isinstance(keep, dict) else None
        places += [(dataset, key) for key in ("path", "data_dir", "media")]
        places += [(ranges, "file"), (dataset.get("sample_weight"), "file")]
    for holder, key in places:
        value = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(value, str) and "://" not in value:
            holder[key] = str((folder / expanded(value)).absolute())


def complaint(error: ValidationError, plain: Mapping[str, Any]) -> tuple[str, str, str]:
    """Pydantic's first fault in this library's words: what is wrong, the remedy, the field's path.

    Args:
        error: error that pydantic raised.
        plain: the document that was validated.
    """
    found = error.errors()
    # Where an item is wrong, pydantic also says that its list or mapping has too few.
    inner = {fault["loc"][:length] for fault in found for length in range(len(fault["loc"]))}
    faults = [
        (_path_of(fault["loc"], plain), fault) for fault in found if fault["loc"] not in inner
    ]
    path, first = faults[0]
    others = list(dict.fromkeys(where for where, _ in faults if where != path))
    kind = "missing" if all(fault["type"] == "missing" for _, fault in faults) else "wrong"
    more = f" (also {kind}: {', '.join(others[:_NAMED])}" if others else ""
    more += f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    more += ")" if others else ""
    where = f"{path}: " if path else ""
    context = first.get("ctx") or {}
    if isinstance(cause := context.get("error"), AutoloaderError):
        what = cause.what.removeprefix(f"{path.rpartition('.')[2]}: ")
        return f"{where}{what}{more}", cause.remedy, path
    if "remedy" in context:
        where = where or "at the top level: " * context["what"].startswith("unknown key")
        return f"{where}{context['what']}{more}", context["remedy"], path
    if first["type"] == "missing":
        above, _, key = path.rpartition(".")
        like = f", such as {key}: {_EXAMPLES[key]}" if key in _EXAMPLES else ""
        block = f"to {above}" if above else "at the top level"
        return f"{path} is required and missing{more}", f"add {key} {block}{like}", path
    if first["type"] == "too_short" and path in _EXAMPLES:
        remedy = f"give at least one, such as {path}: {_EXAMPLES[path]}"
        return f"{where}{shown(first.get('input'))} lists no {path[:-1]}{more}", remedy, path
    allowed = dict.fromkeys(_allowed(fault) for other, fault in faults if other == path)
    what = f"{where}{shown(first.get('input'))} is not allowed{more}"
    return what, "it should be " + ", or ".join(allowed), path


_EXAMPLES = {
    "datasets": "[{name: bridge, path: /data/bridge/1.0.0, action: action}]",
    "cameras": "{primary: {size: [256, 256]}}",
    "images": "{primary: observation/image}",
    "features": "{reward: reward}",
    "split": "{train: 'train[:95%]', val: 'train[95%:]'}",
    "pad_to": "{action: 7}",
    "group": "{widowx: [bridge]}",
    "match": "{language_instruction: 'pick.*'}",
    "gives": "{input_ids: {dtype: int32, shape: [32]}}",
    "augment": "{primary: {brightness: 0.1}}",
    "over": "100000",
    "from": "{bridge: 1.0}",
    "to": "{bridge: 2.0}",
}
"""Example of a field, by its key."""


def _block(fault: ErrorDetails) -> str:
    """Say what a block looks like: its keys, or an example where it may have any."""
    name = (fault.get("ctx") or {}).get("class_name") or str(("", *fault["loc"])[-1])
    known = next((one for one in Block.__subclasses__() if one.__name__ == name), None)
    keys = [field.alias or key for key, field in known.model_fields.items()] if known else []
    told = f", such as {_EXAMPLES[name]}" if name in _EXAMPLES else ""
    more = ", …" if len(keys) > _KEYS else ""
    told += f"; its keys: {', '.join(keys[:_KEYS])}{more}" if keys else ""
    return f"a block of keys and values{told}"


_LIST = "a list: {example}, or one line '- …' for each entry"
_ALLOWED = {
    "too_short": "a {kind} with {min_length} or more entries",
    "too_long": "a {kind} with at most {max_length} entries",
    "greater_than_equal": "at least {ge}{unit}",
    "less_than_equal": "at most {le}{unit}",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_too_short": "text of at least {min_length} character",
    "string_too_long": "text of at most {max_length} characters",
    "byte_size": 'a size such as "5GB"',
    "byte_size_unit": 'a size such as "5GB"',
    "int_type": "an integer",
    "float_type": "a number",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "json_invalid": "JSON: {error}",
    "string_pattern_mismatch": "text that the pattern {pattern} matches",
}
"""What each kind of pydantic's faults allows, where its own words are a programmer's."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_\-]*$"
"""Names that a spec gives to datasets, cameras and features."""
_PATTERNS = {
    pattern: f"a name of letters, digits, {others}, which begins with a letter or digit"
    for pattern, others in (
        (NAME_PATTERN, "_ and -"),
        (r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "_, . and -"),
    )
}


def _allowed(fault: ErrorDetails) -> str:
    if fault["type"] in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        return _block(fault)
    known = _ALLOWED.get(fault["type"])
    if fault["type"] == "string_type":
        block = next((part for part in reversed(fault["loc"][:-1]) if part in _EXAMPLES), None)
        return f"text, as in {block}: {_EXAMPLES[str(block)]}" if block else "text"
    if known is not None:
        example = _EXAMPLES.get(str(("", *fault["loc"])[-1]), "[a, b]")
        sized = isinstance(given := fault.get("input"), str) and given[-1:].isalpha()  # as "1kB" is
        context = {"kind": "list", "example": example, "unit": " bytes" if sized else ""}
        context |= fault.get("ctx") or {}
        if context.get("field_type") == "Dictionary":
            context["kind"] = "block"
        return _PATTERNS.get(
            context.get("pattern", ""), known.format_map(context).removesuffix(".0")
        )
    return str(fault["msg"]).removeprefix("Input should be ")


def _path_of(loc: tuple[int | str, ...], plain: Mapping[str, Any]) -> str:
    """``datasets[bridge].images.primary``; pydantic's own markers are left out."""
    path = ""
    holder: Any = plain
    for part in loc:
        if isinstance(part, int):
            inner: Any = holder[part] if isinstance(holder, list) and part < len(holder) else None
            path += f"[{_label(inner, part)}]"
            holder = inner
            continue
        known = isinstance(holder, Mapping) and part in holder
        if not known and _is_marker(part):
            continue
        path += f".{part}" if path else part
        holder = holder[part] if known else None
    return path


def _is_marker(part: str) -> bool:
    kinds = ("function-", "constrained-")
    return "[" in part or part in {"int", "float", "str"} or part.startswith(kinds)


MAX_BYTES = 256 * 1024
"""Bytes of a YAML file."""
MAX_DEPTH = 64
"""Lists and mappings inside each other."""
_TOO_DEEP = f"lists and mappings are nested deeper than {MAX_DEPTH}, the limit"
MAX_VALUES = 50_000
"""Values in a YAML file; what an alias repeats counts at each place."""


class _LimitError(YAMLError):
    """A document crosses a limit."""


def _measured(node: Any, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
    """(values, height) of a node, with its aliases expanded.

    The parser pays nothing for an alias, but building the values pays for everything that the alias
    repeats. So each node is measured once, and counts again wherever an alias repeats it.

    Raises:
        DocumentError: the node holds itself.
        _LimitError: it crosses a limit.
    """
    line, key = f"line {node.start_mark.line + 1}", id(node)
    found = known.get(key)
    if found is None:
        if key in known:
            raise DocumentError(
                f"{line}: the value named &{node.anchor} contains itself, by an alias",
                f"remove the alias *{node.anchor} from that value",
            )
        known[key] = None
        values = height = 0
        if depth <= MAX_DEPTH and isinstance(node, CollectionNode):
            fields = set[tuple[str, str]]()
            for part in node.value:
                if isinstance(part, tuple):  # the parser does not look beside a merge key (<<)
                    if isinstance(part[0], CollectionNode):
                        raise MarkedYAMLError(None, None, "unhashable", part[0].start_mark)
                    field = str(part[0].tag), str(part[0].value)
                    if field in fields:
                        raise MarkedYAMLError(None, None, "duplicate key", part[0].start_mark)
                    fields.add(field)
                for inner in part if isinstance(part, tuple) else (part,):
                    more, tall = _measured(inner, known, depth + 1)
                    values, height = values + more, max(height, tall)
        found = known[key] = values + 1, height + 1
    if depth + found[1] - 1 > MAX_DEPTH:
        raise _LimitError(f"{line}: {_TOO_DEEP}")
    if found[0] > MAX_VALUES:
        raise _LimitError(
            f"{line}: the file has more than {MAX_VALUES} values, the limit "
            "(what an alias repeats counts each time)"
        )
    return found


def read_yaml_file(path: str | Path) -> Any:
    """The plain values of a YAML file.

    Raises:
        DocumentError: the file cannot be read, is no YAML, or crosses a limit.
    """
    try:
        content = read_regular(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise DocumentError(
            error.strerror or str(error), "give the path of a readable file"
        ) from error
    return parse_yaml(content)


def packaged(package: str, name: str, of: type[_Type]) -> _Type:
    """A YAML file in one of this library's packages, as a value of a type."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    found: _Type = adapter(of).validate_python(parse_yaml(text))
    return found


class _Constructor(SafeConstructor):
    """Adds the place of a value to Python's own error about it, such as of the date 2024-13-01."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, OverflowError) as error:
            error.__dict__.setdefault("problem_mark", node.start_mark)
            raise


def parse_yaml(text: str | bytes) -> Any:
    """The plain values of a YAML text.

    Raises:
        DocumentError: the text is no YAML, or crosses a limit.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.composer.warn_double_anchors = _Constructor, False
    whole = ""
    try:
        whole = text.decode("utf-8") if isinstance(text, bytes) else text
        root = yaml.compose(whole)
        if root is None:
            return None
        _measured(root, {}, 1)
        return yaml.constructor.construct_document(root)
    except _LimitError as error:
        raise DocumentError(str(error), "write it shorter and flatter") from error
    except RecursionError as error:
        raise DocumentError(_TOO_DEEP, "write it shorter and flatter") from error
    # Numbers and dates that Python cannot hold are told by Python's own errors.
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None and mark.index >= len(whole.rstrip()):
            raise DocumentError(
                f"it ends in the middle of a key or value, in line {len(whole.splitlines())}",
                "close its bracket or quote, or write the rest of the file",
            ) from error
        raise _syntax(error, mark, whole) from error


_SYNTAX = {
    "expected <block end>": "is indented differently from the lines above",
    "mapping values": "has a colon where no key can stand → put the text in quotes, or mend the "
    "indentation here or the line above",
    "'\\t'": "has a tab → indent with spaces",
    "expected ','": "has a bracket that is not closed, or follows one → close it",
    "expected ':'": "comes after a line with no colon, or no space after its colon",
    "duplicate key": "repeats a key of its block → remove one of the two, or rename it",
    "unhashable": "has a list or a block in place of a key → put text that begins with [ or { in "
    "quotes; a key is text",
}
"""Part of what the parser says → what is wrong with the line, and a remedy of its own."""


def _syntax(error: Exception, mark: Any, whole: str) -> DocumentError:
    if isinstance(error, UnicodeDecodeError):
        return DocumentError("its text is not UTF-8", "save it as UTF-8")
    said = " ".join(str(getattr(error, "problem", None) or error).split())
    if isinstance(error, ReaderError):
        number = whole.count("\n", 0, error.position) + 1
        return DocumentError(
            f"line {number}: it holds the character {chr(error.character)!r}, which YAML forbids",
            "remove the character, or check that this is the right file",
        )
    if mark is None or mark.line >= len(whole.splitlines()):
        return DocumentError(f"it is not YAML: {said}", "fix the file's syntax")
    told = [one for part, one in _SYNTAX.items() if part in said] or [f"is not YAML: {said}"]
    what, _, remedy = told[0].partition(" → ")
    if not isinstance(error, YAMLError):  # Python's own: a date or number that cannot be
        said = "it is too long" if "integer string conversion" in said else said
        what = f"has a date or number that cannot be read: {said}"
        remedy = "put it in quotes if it is text, or correct it"
    line = shown(whole.splitlines()[mark.line].strip())
    return DocumentError(
        f"line {mark.line + 1}: {line} {what}", remedy or "fix this line, or the lines above it"
    )


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    return _dumped(value, flow=True, width=sys.maxsize).removesuffix("...\n").strip()


def written_yaml(value: Any) -> str:
    """A value as the text of a YAML file, in blocks; keys keep their order."""
    return _dumped(value, flow=None, width=100)


def _dumped(value: Any, *, flow: bool | None, width: int) -> str:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = flow, width
    yaml.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue()
