"""Normalisation as column arithmetic: (x − centre) × factor, bounded or not, for all rows at once.

Theory of operation. Every method is one affine map a column, in float32: ``q01_q99`` and
``min_max`` bring that range to [-1, 1], ``mean_std`` gives (x − mean) / std. A column that is
constant (or whose range is empty) becomes 0. It is applied to the rows as the model would get them
otherwise: after field expressions, differences and sums, before padding.

Invariants:
    1. Columns outside the mask pass through, to the bit.
    2. Padding stays zero: columns beyond the dataset's own, and rows that hold nothing.
    3. ``tfdata.samples`` does the same arithmetic in TensorFlow, tested equal.

Not here: the statistics (``samples.statistics``), computing them (``autoloader.statistics``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError
from autoloader.samples.statistics import FieldStatistics
from autoloader.spec import FieldNormalizeSpec


@dataclass(frozen=True)
class Scaling:
    """One field's map; equal by identity.

    Attributes:
        centre, factor: [width] float32.
        active: [width] bool; the other columns pass through.
        clip: whether the result is bounded to [-1, 1].
    """

    centre: NDArray[np.float32]
    factor: NDArray[np.float32]
    active: NDArray[np.bool_]
    clip: bool

    def apply(self, values: NDArray[np.float32], nothing: NDArray[np.bool_]) -> None:
        """Normalise in place.

        Args:
            values: [n, R, W] float32, W ≥ width; the rest is padding.
            nothing: [n, R] bool, rows that hold no value and stay zero.
        """
        own = values[..., : len(self.centre)]
        scaled = (own - self.centre) * self.factor
        if self.clip:
            np.clip(scaled, np.float32(-1), np.float32(1), out=scaled)
        own[...] = np.where(self.active & ~nothing[..., None], scaled, own)


def scaling_of(
    how: FieldNormalizeSpec, found: FieldStatistics, width: int, *, field: str, dataset: str
) -> Scaling:
    """The map of one field of one dataset.

    Args:
        how: the spec's method, dims and clipping.
        found: the dataset's statistics.
        width: columns of the dataset's field.
        field: "action" or "state", for messages.
        dataset: its name, for messages.

    Raises:
        SpecError: the statistics are of another width, or lack what the method needs; dims take no
            column, or the statistics' mask is of another width.
    """
    if len(found.mean) != width:
        raise SpecError(
            f"normalize.{field}: the statistics of dataset {dataset!r} have {len(found.mean)} "
            f"columns, its {field} has {width}",
            remedy="compute them for this spec: autoloader stats --spec SPEC --out FILE",
            path="normalize.statistics",
        )
    try:
        mask = how.mask(width) or found.mask or (True,) * width
    except IndexError as error:
        raise SpecError(
            f"normalize.{field}.dims: {how.dims!r} does not fit the {width} columns of dataset "
            f"{dataset!r}",
            remedy="name columns that every dataset has, counted from the front or the end",
            path=f"normalize.{field}.dims",
        ) from error
    if how.method == "mean_std":
        centre, unit = np.asarray(found.mean), np.asarray(found.std)
    else:
        bounds = (found.q01, found.q99)
        if how.method == "min_max":
            bounds = (found.minimum, found.maximum)
        if bounds[0] is None or bounds[1] is None:
            raise SpecError(
                f"normalize.{field}.method: {how.method}, but the statistics of dataset "
                f"{dataset!r} have no {'extremes' if how.method == 'min_max' else 'quantiles'}",
                remedy="choose a method that they have numbers for, such as mean_std, or compute "
                "them: autoloader stats --spec SPEC --out FILE",
                path=f"normalize.{field}.method",
            )
        low, high = np.asarray(bounds[0]), np.asarray(bounds[1])
        centre, unit = (low + high) / 2, (high - low) / 2
    constant = ~(unit > 0)
    if found.minimum is not None and found.maximum is not None:
        constant |= np.asarray(found.minimum) == np.asarray(found.maximum)
    factor = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, unit))
    return Scaling(
        centre.astype(np.float32),
        factor.astype(np.float32),
        np.asarray(mask, dtype=np.bool_),
        how.clip,
    )
