"""Reads spec files, and turns every fault into a ``SpecError`` that says what to do.

Reads YAML files that people write, and refuses one that crosses the limits below.

The limits bound what a broken or hostile file costs: what lies within them is read in seconds. A
mixture of 700 datasets does.

Not here: the language itself (``model``, ``fields``).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError

from autoloader.errors import AutoloaderError, SpecError, nearest, shown
from autoloader.host.units import expanded
from autoloader.spec.regular_files import DocumentError, read_regular

_NAMED = 3
"""Further wrong fields that a message names."""


_Spec = TypeVar("_Spec", bound=BaseModel)


def read_yaml(path: Path, kind: type[_Spec], dataset: type[BaseModel]) -> _Spec:
    """The spec in the file at ``path``; see ``PipelineSpec.from_yaml``.

    Args:
        path: path of the YAML file.
        kind: model class, such as ``PipelineSpec``.
        dataset: ``DatasetSpec``, whose fields ``defaults`` may set.
    """
    return read_mapping(read_document(path), kind, dataset, folder=path.parent)


def read_document(path: Path) -> dict[str, Any]:
    """The mapping that a spec file holds, as it is written.

    Raises:
        SpecError: the file cannot be read, is empty, is no YAML, or holds no mapping.
    """
    try:
        raw = read_yaml_file(path)
    except DocumentError as error:
        raise SpecError(f"{path}: {error.what}", remedy=error.remedy, path="") from error
    if not isinstance(raw, dict):
        holds = "is empty" if raw is None else f"holds {type(raw).__name__}, not a mapping"
        raise SpecError(f"{path} {holds}", remedy="start with schema_version, datasets and cameras")
    return raw


def read_mapping(
    raw: Mapping[str, Any], kind: type[_Spec], dataset: type[BaseModel], *, folder: Path
) -> _Spec:
    """The spec in plain values; see ``PipelineSpec.from_mapping`` and ``read_yaml``."""
    plain = _plain(raw)
    if not isinstance(plain, dict):
        raise SpecError(
            f"a spec is a mapping, and this is {shown(raw)}",
            remedy="pass what a spec file would say, such as {'datasets': […], 'cameras': {…}}",
        )
    if plain.get("augment", {}) is None:
        del plain["augment"]
    _apply_defaults(plain, set(dataset.model_fields) - {"name"})
    _resolve_paths(plain, folder)
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        what, remedy, path = complaint(error, plain)
        raise SpecError(what, remedy=remedy, path=path) from error


def _plain(value: Any, depth: int = 1) -> Any:
    if depth > MAX_DEPTH:
        raise SpecError(
            f"lists and mappings lie more than {MAX_DEPTH} deep, which is the most",
            remedy="write it flatter; a value cannot hold itself",
        )
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
            f"defaults: {shown(defaults)} is no mapping",
            remedy="write what every dataset shares, such as {data_dir: /data/oxe}",
        )
    for key in defaults:
        if key not in fields:
            raise SpecError(
                f"defaults.{key}: no dataset may say {key!r} here", remedy=nearest(key, fields)
            )
    datasets = plain.get("datasets")
    for dataset in datasets if isinstance(datasets, list) else []:
        if not isinstance(dataset, dict):
            continue
        for key, value in defaults.items():
            if key == "data_dir" and "path" in dataset:
                continue
            if isinstance(value, dict) and isinstance(dataset.get(key), dict):
                dataset[key] = {**value, **dataset[key]}
            else:
                dataset.setdefault(key, value)


def _resolve_paths(plain: dict[str, Any], folder: Path) -> None:
    datasets = plain.get("datasets")
    for dataset in datasets if isinstance(datasets, list) else []:
        keep = dataset.get("keep") if isinstance(dataset, dict) else None
        ranges = keep.get("ranges") if isinstance(keep, dict) else None
        for holder, key in ((dataset, "path"), (dataset, "data_dir"), (ranges, "file")):
            if not isinstance(holder, dict):
                continue
            value = holder.get(key)
            if isinstance(value, str) and "://" not in value:
                holder[key] = str((folder / expanded(value)).absolute())
    normalize = plain.get("normalize")
    statistics = normalize.get("statistics") if isinstance(normalize, dict) else None
    if isinstance(normalize, dict) and isinstance(statistics, str):
        normalize["statistics"] = str((folder / expanded(statistics)).absolute())


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
    more = f" (also wrong: {', '.join(others[:_NAMED])}" if others else ""
    more += f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    more += ")" if others else ""
    where = f"{path}: " if path else ""
    context = first.get("ctx") or {}
    if isinstance(cause := context.get("error"), AutoloaderError):
        return f"{where}{cause.what}{more}", cause.remedy, path
    if "remedy" in context:
        return f"{where}{context['what']}{more}", context["remedy"], path
    if first["type"] == "missing":
        return f"{where}is required and missing{more}", f"add {path!r} to the file", path
    allowed = dict.fromkeys(_allowed(fault) for other, fault in faults if other == path)
    what = f"{where}{shown(first.get('input'))} is not allowed{more}"
    return what, "it should be " + ", or ".join(allowed), path


_BLOCK = "a block of keys and values"
_ALLOWED = {
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": _BLOCK,
    "mapping_type": _BLOCK,
    "model_type": _BLOCK,
    "model_attributes_type": _BLOCK,
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "string_pattern_mismatch": "text that the pattern {pattern} matches",
}
"""What each kind of pydantic's faults allows, where its own words are a programmer's."""


def _allowed(fault: ErrorDetails) -> str:
    known = _ALLOWED.get(fault["type"])
    if known is not None:
        return known.format_map(fault.get("ctx") or {})
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
    whole = ""
    try:
        whole = text.decode("utf-8") if isinstance(text, bytes) else text
        return yaml.load(whole)
    except _LimitError as error:
        raise DocumentError(str(error), "write it shorter and flatter") from error
    # Numbers and dates that Python cannot hold, and lists as keys, are told by Python's own errors.
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None and mark.index >= len(whole.rstrip()):
            raise DocumentError(
                f"it ends in the middle of a key or value, in line {len(whole.splitlines())}",
                "write the rest of the file; it may have been saved or copied by half",
            ) from error
        raise DocumentError(
            f"it is no YAML: {' '.join(str(error).split())}", "mend the file's syntax"
        ) from error


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
