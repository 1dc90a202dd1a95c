"""Statistics of a dataset's action and state, and how they are written down.

The plain form is the layout that Octo and OpenVLA checkpoints carry (``dataset_statistics.json``):
by dataset ``action`` and ``proprio`` (the state), each with ``mean``, ``std``, ``max``, ``min``,
``q01``, ``q99`` and ``mask``, beside ``num_transitions`` and ``num_trajectories``. ``p01`` and
``p99`` are read as quantiles too, ``state`` as ``proprio``. Files of other tools lack some of it:
mean and std alone are always there.

Normalisation as column arithmetic: (x − centre) × factor + shift, bounded or not, for all rows.

Theory of operation. Every method is one affine map a column, in float32: ``q01_q99`` and
``min_max`` bring that range to [-1, 1], ``mean_std`` gives (x − mean) / std. It is applied to the
rows as the model would get them otherwise: after field expressions, differences and sums, before
padding.

Projects differ where a column is constant, or nearly so (``arithmetic``):

| | added to std, or to the range | a constant column | one whose range is empty, not constant |
| --- | --- | --- | --- |
| autoloader | nothing | 0 | 0 |
| octo | 1e-8 | range: −1; mean_std: 0 | −1 at the bound, else far off (±1 with ``clip``) |
| openvla | 1e-8 | range: 0, outside the mask too; mean_std: 0 | as octo |
| openpi | 1e-6 | range: −1; mean_std: 0 | as octo |
| lerobot | std: 1e-8; a range of 0 is 1e-8 | range: −1; mean_std: 0 | as octo |
| gr00t | nothing | min_max: 0; q01_q99, mean_std: x | x |
| gr00t_n16 | nothing | range: 0; mean_std: x | 0 where ``np.isclose`` says so |

Theirs map the lower bound to −1 in float32 exactly, so they are taken from there (``shift``).

Invariants:
    1. Columns outside the mask pass through, to the bit.
    2. Padding stays zero: columns beyond the dataset's own, and rows that hold nothing.
    3. ``integrations.tfdata.samples`` does the same arithmetic in TensorFlow, tested equal.

Not here: computing them, files (``autoloader.index.statistics``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from autoloader.errors import SpecError, many
from autoloader.samples.draws import Bools, Floats
from autoloader.spec import FieldNormalizeSpec
from autoloader.spec.block import wrong
from autoloader.spec.mixture import ColumnsNormalizeSpec, column_mask
from autoloader.spec.reading import complaint

_LEAST = 1 / float(np.finfo(np.float32).max)
"""A range or deviation below has no reciprocal in float32, and counts as 0."""
Column = Annotated[tuple[FiniteFloat, ...], Field(min_length=1)]


def _named(*names: str) -> Any:
    """A column that statistics may lack, by the names that files give it, our own first."""
    return Field(None, validation_alias=AliasChoices(*names), serialization_alias=names[0])


class _Plain(BaseModel):
    """A part of a statistics file; keys of other tools are passed over."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True)

    def plain(self) -> dict[str, Any]:
        """As a statistics file has it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class FieldStatistics(_Plain):
    """Statistics of one field of one dataset, [width] each.

    Attributes:
        mean, std: mean and standard deviation of all rows, of the population.
        minimum, maximum, q01, q10, q50, q90, q99: exact; quantiles by linear interpolation.
        mask: the columns that are normalised, where the statistics say so.
    """

    mean: Column
    std: Column
    maximum: Column | None = _named("max")
    minimum: Column | None = _named("min")
    q01: Column | None = _named("q01", "p01")
    q10: Column | None = None
    q50: Column | None = None
    q90: Column | None = None
    q99: Column | None = _named("q99", "p99")
    mask: tuple[bool, ...] | None = None

    @model_validator(mode="after")
    def _agree_in_width(self) -> FieldStatistics:
        widths = {len(column) for _, column in self if column}
        if len(widths) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in self if column)
            raise wrong(f"its lists have different lengths: {lengths}", "give as many in each")
        return self

    def cut(self, width: int) -> FieldStatistics:
        """Statistics of the first ``width`` columns."""
        return self.model_copy(update={own: column[:width] for own, column in self if column})


_Field = Annotated[FieldStatistics | None, BeforeValidator(lambda raw: raw or None)]
_Count = Annotated[int, BeforeValidator(lambda raw: raw or 0)]


class NormalizationStatistics(_Plain):
    """Statistics of one dataset; ``transitions`` are samples of a pass, ``trajectories`` episodes.

    A field that the dataset does not have is ``None``. ``action_rows`` are of each row of the
    horizon, as differences to the state. ``padded`` ones may have columns behind the data's own,
    which mean nothing.
    """

    action: _Field = None
    state: _Field = _named("proprio", "state")
    action_rows: tuple[FieldStatistics, ...] | None = None
    transitions: _Count = Field(0, alias="num_transitions")
    trajectories: _Count = Field(0, alias="num_trajectories")
    padded: bool = Field(False, exclude=True)

    def fitted(self, action: int, state: int) -> NormalizationStatistics:
        """Without padding, for fields of these widths."""
        if not self.padded:
            return self
        own = {"action": self.action and self.action.cut(action),
               "state": self.state and self.state.cut(state)}  # fmt: skip
        return self.model_copy(update={**own, "padded": False})

    @classmethod
    def from_plain(cls, document: Any, *, padded: bool = False) -> NormalizationStatistics:
        """From a statistics file.

        Args:
            document: entry of one dataset in the file.
            padded: whether there may be columns that mean nothing.

        Raises:
            ValueError: the entry is no such entry; says why.
        """
        try:
            return cls.model_validate(document).model_copy(update={"padded": padded})
        except ValidationError as error:
            what, remedy, _ = complaint(error, document if isinstance(document, dict) else {})
            raise ValueError(f"{what}; {remedy}") from error


@dataclass(frozen=True, eq=False)
class Scaling:
    """Normalisation of one field: (x − centre) × factor + shift, on the active columns.

    Attributes:
        centre, factor, shift: [width] float32, or [R, width] where rows of a horizon differ.
        active: [width] bool; the other columns pass through.
        bound: [width] float32 largest absolute values; ``None``: there are no bounds.
        binary: [width] bool, columns that are 1 where x > 0.5, NaN where x is, else 0; ``None``:
            there are none.
    """

    centre: Floats
    factor: Floats
    shift: Floats
    active: Bools
    bound: Floats | None = None
    binary: Bools | None = None

    def apply(self, values: Floats, nothing: Bools) -> None:
        """Normalise in place.

        Args:
            values: [n, R, W] float32, W ≥ width; the rest is padding.
            nothing: [n, R] bool, rows that hold no value and stay zero.
        """
        own = values[..., : len(self.active)]
        scaled = (own - self.centre) * self.factor + self.shift
        if self.bound is not None:
            np.clip(scaled, -self.bound, self.bound, out=scaled)
        if self.binary is not None:
            switches = own[..., self.binary]
            large = switches > np.float32(0.5)
            scaled[..., self.binary] = np.where(np.isnan(switches), switches, large)
        own[...] = np.where(self.active & ~nothing[..., None], scaled, own)


def scaling_of(
    how: FieldNormalizeSpec,
    found: FieldStatistics,
    width: int,
    *,
    field: str,
    dataset: str,
    rows: Sequence[FieldStatistics] = (),
    horizon: int = 1,
) -> Scaling:
    """The map of one field of one dataset.

    Args:
        how: the spec's method, dims and clipping.
        found: statistics of the dataset's fields.
        width: columns of the dataset's field.
        field: "action" or "state", for messages.
        dataset: name of the dataset, for messages.
        rows: statistics of each row of the horizon, for columns that are normalised by row.
        horizon: rows of the field.

    Raises:
        SpecError: the statistics are of another width or horizon, or lack what the method needs;
            dims take no column, or the statistics' mask is of another width.
    """
    if len(found.mean) != width:
        raise SpecError(
            f"normalize.{field}: the statistics of dataset {dataset!r} have "
            f"{many(len(found.mean), 'column')}, its {field} has {width}",
            remedy="run autoloader stats SPEC -o FILE, and set normalize.statistics to FILE",
            path="normalize.statistics",
        )
    if how.by_row and len(rows) != horizon:
        raise SpecError(
            f"normalize.{field}.columns: by_row needs statistics for each of the {horizon} steps "
            f"of {field}; those of dataset {dataset!r} are for {len(rows) or 'no single'} steps",
            remedy="run autoloader stats SPEC -o FILE, and set normalize.statistics to FILE; "
            "by_row is for actions with action_relative_to_state only",
            path="normalize.statistics",
        )
    whole: list[FieldNormalizeSpec | ColumnsNormalizeSpec] = [how, *how.columns]
    of = [np.ones(width, np.bool_)]
    for one in whole:
        try:
            if one is how:
                mask = how.mask(width) or found.mask or (True,) * width
            else:
                of.append(np.asarray(column_mask(one.dims, width)))
        except IndexError as error:
            raise SpecError(
                f"normalize.{field}.dims: {one.dims!r} does not fit the {many(width, 'column')} of "
                f"dataset {dataset!r}",
                remedy="choose columns that every dataset has, counted from the front or the end",
            ) from error
    active = np.asarray(mask, dtype=np.bool_)
    bound, binary = np.full(width, np.inf), np.zeros(width, np.bool_)
    numbers: Any = np.zeros((3, horizon if how.by_row else 1, width))
    for one, own in zip(whole, of, strict=True):
        bound[own], binary[own] = one.bound, one.method == "binary"
        if one.method == "binary":
            numbers[..., own] = 0.0
            continue
        by_row = isinstance(one, ColumnsNormalizeSpec) and one.by_row
        for row, given in enumerate(rows if by_row else (found,)):
            where = row if by_row else slice(None)
            *made, zero = _map(one.method, how, given, field=field, dataset=dataset)
            for part, values in zip(numbers, made, strict=True):
                part[where][..., own] = values[own]
            if how.arithmetic == "openvla":  # there a constant column is 0 outside the mask, too
                active = active | (zero & own)
    centre, factor, shift = (
        np.asarray(part if how.by_row else part[0], np.float32) for part in numbers
    )
    return Scaling(
        centre,
        factor,
        shift,
        active,
        None if np.isinf(bound[active]).all() else bound.astype(np.float32),
        binary if binary.any() else None,
    )


def _map(
    method: str, how: FieldNormalizeSpec, found: FieldStatistics, *, field: str, dataset: str
) -> tuple[Any, Any, Any, Any]:
    """([W] centre, factor, shift, whether the column becomes 0) of a method, in float64."""
    width = len(found.mean)
    shift, same = np.zeros(width), np.zeros(width, dtype=np.bool_)
    if found.minimum is not None and found.maximum is not None:
        same = np.asarray(found.minimum) == np.asarray(found.maximum)
    if method == "mean_std":
        low = high = centre = np.asarray(found.mean)
        unit = np.asarray(found.std)
    else:
        bounds = (found.q01, found.q99)
        if method == "min_max":
            bounds = (found.minimum, found.maximum)
        if bounds[0] is None or bounds[1] is None:
            raise SpecError(
                f"normalize.{field}.method: {method}, but the statistics of dataset "
                f"{dataset!r} have no {'min and max' if method == 'min_max' else 'quantiles'}",
                remedy="choose another method, such as mean_std, or compute new statistics: "
                "autoloader stats SPEC -o FILE",
            )
        low, high = np.asarray(bounds[0]), np.asarray(bounds[1])
        centre, unit = (low + high) / 2, (high - low) / 2
        if how.arithmetic != "autoloader":
            centre, shift = low, shift - 1
    kept = np.zeros(width, dtype=np.bool_)
    unit = np.where(abs(unit) < _LEAST, 0.0, unit)
    if how.arithmetic == "autoloader":
        still = ~(unit > 0) | same
    elif how.arithmetic.startswith("gr00t"):
        still = unit == 0
        if method == "mean_std" or (how.arithmetic == "gr00t" and method == "q01_q99"):
            still, kept = kept, still
        elif how.arithmetic == "gr00t_n16":
            still = np.isclose(high, low)
    else:
        still = same & (how.arithmetic == "openvla" and method != "mean_std")
        added = np.full(width, 1e-6 if how.arithmetic == "openpi" else 1e-8)
        if method != "mean_std":
            added /= 2  # of half the range
            if how.arithmetic == "lerobot":
                added[unit > 0] = 0.0
        unit = unit + added
    factor = np.where(still, 0.0, 1.0 / np.where(still | kept, 1.0, unit))
    if how.arithmetic == "autoloader":  # what float32 takes from the centre
        shift = (centre.astype(np.float32) - centre) * factor
    return (
        np.where(kept, 0.0, centre), factor, np.where(still | kept, 0.0, shift), still
    )  # fmt: skip
