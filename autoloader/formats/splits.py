"""Split expressions, resolved to ranges of records exactly as TFDS resolves them.

Not here: names of shard files (``autoloader.formats.metadata``).

Grammar, as in https://www.tensorflow.org/datasets/splits:

    expression = term {"+" term}
    term       = "all" | name | name "[" [from] ":" [to] "]" | name "[" integer "shard]"
    from, to   = number | number "%" | number "shard"     (negative: counted from the end)

Percentages are turned into records by rounding to the closest, halves to even. Either side's unit
counts for both. A term that would start before the first or end behind the last record is
refused; so is an expression that holds no record at all. Two quirks of TFDS are kept, since the
same string must mean the same records: a start that rounds to zero from below is the start of the
split (``train[-1%:]`` of 25 is all of it), and ``train[:0shard]`` is the whole split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoloader.errors import SpecError, nearest

_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[^\[\]]*)\])?")
_BOUND = re.compile(r"(?P<value>-?[\d_.]+)(?P<unit>%|shard)?")
_REMEDY = (
    'write a split as TFDS does, such as "train", "train[:90%]", "train[10:20]", '
    '"train[-5:]", "train[:2shard]" or "train+val"'
)


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records [start, stop) of one shard of a split."""

    split: str
    shard: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    name: str
    start: float | int | None = None
    stop: float | int | None = None
    unit: str = "abs"


def resolve_split(
    expression: str, shard_records: Mapping[str, Sequence[int]], *, field: str
) -> tuple[RecordRange, ...]:
    """The records that ``expression`` names, in TFDS's order, without empty ranges.

    Args:
        expression: split expression of the spec.
        shard_records: records per shard of every split, in the metadata's order.
        field: path of the spec field that holds the expression, for messages.

    Raises:
        SpecError: the expression cannot be parsed, names an unknown split, reaches outside of
            it, or holds no record.
    """
    text = expression.strip()
    if text in shard_records:  # a name wins over the grammar, also a split named "all"
        terms = [_Term(text, text)]
    else:
        terms = []
        for part in re.split(r"\s*\+\s*", text):
            if part == "all":
                terms += [_Term(name, name) for name in shard_records]
            else:
                terms.append(_parse_term(part, expression=expression, field=field))
    ranges: list[RecordRange] = []
    for term in terms:
        records = _records_of(term, shard_records, field=field)
        start, stop = _bounds(term, records, field=field)
        ranges += _cut(term.name, records, start, stop)
    if not ranges:
        sizes = {term.name: sum(shard_records[term.name]) for term in terms}
        total = ", ".join(f"{name} has {count} episodes" for name, count in sizes.items())
        short = f"of {next(iter(sizes.values()))} episodes" if len(sizes) == 1 else f"({total})"
        raise SpecError(
            f"{field}: {text} {short} is empty" if terms else f"{field}: there is no split at all",
            remedy=_empty_remedy(sizes),
            path=field,
        )
    return tuple(ranges)


def _empty_remedy(sizes: Mapping[str, int]) -> str:
    filled = {name: count for name, count in sizes.items() if count}
    if not filled:
        return "choose another split: dataset_info.json says that this one holds no episodes"
    name, count = max(filled.items(), key=lambda item: item[1])
    percent = -(-100 // count)
    return f'take at least one episode, such as "{name}[:1]" or "{name}[:{percent}%]"'


def _parse_term(text: str, *, expression: str, field: str) -> _Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise _bad(expression, f"{text!r} is not a split", field=field)
    name, inside = match["name"], match["slice"]
    if inside is None:
        return _Term(text, name)
    if name == "all":
        raise _bad(expression, '"all" takes no slice', field=field)
    sides = inside.split(":")
    bounds = [_BOUND.fullmatch(side) if side else None for side in sides]
    broken = any(side and bound is None for side, bound in zip(sides, bounds, strict=True))
    if broken or len(sides) > 2 or not any(bounds):
        raise _bad(expression, f"[{inside}] is not a slice", field=field)
    units = [bound["unit"] for bound in bounds if bound is not None]
    unit = next((unit for unit in units if unit), "abs")
    try:
        number = float if unit == "%" else int
        values = [None if bound is None else number(bound["value"]) for bound in bounds]
    except ValueError as error:
        message = f"[{inside}] needs {'numbers' if unit == '%' else 'whole numbers'}"
        raise _bad(expression, message, field=field) from error
    if len(values) == 1:
        if unit != "shard" or values[0] is None:
            raise _bad(
                expression, f"[{inside}] is no slice: only shards can be single", field=field
            )
        return _Term(text, name, values[0], values[0] + 1, unit)
    if unit == "%" and any(value is not None and abs(value) > 100 for value in values):
        raise _bad(expression, f"[{inside}] leaves -100% to 100%", field=field)
    return _Term(text, name, values[0], values[1], unit)


def _bad(expression: str, why: str, *, field: str) -> SpecError:
    return SpecError(
        f"{field}: {expression!r} cannot be read as a split: {why}", remedy=_REMEDY, path=field
    )


def _records_of(
    term: _Term, shard_records: Mapping[str, Sequence[int]], *, field: str
) -> Sequence[int]:
    if term.name not in shard_records:
        known = ", ".join(shard_records) or "none"
        raise SpecError(
            f"{field}: unknown split {term.name!r}; the dataset has: {known}",
            remedy=nearest(term.name, [*shard_records, "all"]),
            path=field,
        )
    return shard_records[term.name]


def _bounds(term: _Term, records: Sequence[int], *, field: str) -> tuple[int, int]:
    """First record and the one behind the last, both counted from the start of the split."""
    total = sum(records)
    start, stop = term.start, term.stop
    if term.unit == "%":
        first = 0 if start is None else round(start * total / 100.0)
        last = total if stop is None else round(stop * total / 100.0)
    elif term.unit == "shard":
        first = 0 if start is None else sum(records[: int(start)])
        if stop is not None and stop <= 0:
            stop += len(records)
        last = total if stop is None else sum(records[: int(stop)])
    else:
        first = 0 if start is None else int(start)
        last = total if stop is None else int(stop)
    if abs(first) > total or abs(last) > total:
        raise SpecError(
            f"{field}: {term.text} reaches outside of {term.name}, which has {total} episodes",
            remedy=f"keep both ends between -{total} and {total}, or use a percentage",
            path=field,
        )
    return (first + total if first < 0 else first), (last + total if last < 0 else last)


def _cut(name: str, records: Sequence[int], start: int, stop: int) -> list[RecordRange]:
    ranges, base = [], 0
    for shard, count in enumerate(records):
        first, last = max(start - base, 0), min(stop - base, count)
        if first < last:
            ranges.append(RecordRange(name, shard, first, last))
        base += count
    return ranges
