"""Small histograms of a field: a column each, as stored, behind each op, and as the model gets it.

Not here: where the values come from (``cli.episode_looks``, a loader), the sheet
(``cli.contact_sheet``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.cli.episode_looks import STORED, TermLook, gripper_columns

FEW_VALUES = 4
"""A stage of no more different values is told with them."""
MOST_DRAWN = 32
"""Columns of a field that are drawn; ``--json`` has all."""

_BINS = 20
_FINE, _WRONG, _PLAIN = "#30638e", "#d1495b", "#8d99ae"


@dataclass
class Column:
    """One column of a field.

    Attributes:
        name: its number and where it comes from; without a number where an op took it away.
        stages: (what was done, its values [n]), as stored first.
        normalised: whether the statistics bring it to a scale; ``None`` where the spec has none.
        flag: what stands out, or "".
    """

    name: str
    stages: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    normalised: bool | None = None
    flag: str = ""

    def plain(self) -> dict[str, Any]:
        """What ``--json`` says of it."""
        return {
            "name": self.name,
            "normalised": self.normalised,
            "flag": self.flag or None,
            "stages": [{"after": label, **_summary(values)} for label, values in self.stages],
        }


def columns_of(
    terms: Sequence[TermLook],
    model: NDArray[np.float32] | None,
    masked: Sequence[bool] | None,
    *,
    label: str,
    grippers: bool,
) -> list[Column]:
    """The columns of a field.

    Args:
        terms: of its expression.
        model: [n, width] rows as the model gets them, or ``None`` where there are none.
        masked: of each column whether it is normalised, or ``None``.
        label: of the stage of ``model``.
        grippers: whether a gripper that is not in {0, 1} is flagged.
    """
    found: list[Column] = []
    lost: list[Column] = []
    wanted = gripper_columns(terms, masked) if grippers else set()
    for term in terms:
        tail = term.text.rpartition("/")[2]
        width = term.width
        for number in range(max(values.shape[1] for _, values in term.stages)):
            at = len(found)
            own = number < width
            column = Column(f"{at}: {tail} {number}" if own else f"{tail} {number}")
            column.stages = [
                (name, values[:, number])
                for name, values in term.stages
                if number < values.shape[1]
            ]
            (found if own else lost).append(column)
            if own and at in wanted:
                column.flag = not_binary(column.stages[-1][1])
    if model is not None and not terms:
        found = [Column(str(at)) for at in range(model.shape[1])]
    for at, column in enumerate(found):
        column.normalised = None if masked is None else bool(masked[at])
        if model is not None and at < model.shape[1]:
            column.stages.append((label, model[:, at]))
    return found + lost


def not_binary(values: NDArray[np.float32]) -> str:
    """What is wrong with a gripper's values, which should be 0 and 1, or ""."""
    finite = values[np.isfinite(values)]
    if not len(finite) or np.isin(finite, (0.0, 1.0)).all():
        return ""
    told = _summary(finite)
    if told["values"]:
        return f"gripper not in {{0, 1}}: {', '.join(f'{one:g}' for one in told['values'])}"
    return f"gripper not in {{0, 1}}: {told['low']:.3g} to {told['high']:.3g}"


def _summary(values: NDArray[np.float32]) -> dict[str, Any]:
    finite = values[np.isfinite(values)].astype(np.float64)
    different = np.unique(finite)
    return {
        "low": float(finite.min()) if len(finite) else None,
        "high": float(finite.max()) if len(finite) else None,
        "mean": float(finite.mean()) if len(finite) else None,
        "values": different.tolist() if 0 < len(different) <= FEW_VALUES else None,
    }


def stage_rows(columns: Sequence[Column]) -> int:
    """Rows of histograms that ``draw_columns`` draws."""
    return max((len(column.stages) for column in columns), default=0)


def draw_columns(axes: Any, columns: Sequence[Column], title: str) -> None:
    """Draw the histograms into ``axes``: a place each, ops from above to below."""
    drawn, rows = columns[:MOST_DRAWN], stage_rows(columns)
    more = f" ({len(columns) - len(drawn)} more)" if len(columns) > len(drawn) else ""
    axes.set_title(title + more, fontsize=7, loc="left", pad=16)
    axes.set_xlim(0, max(len(drawn), 1))
    axes.set_ylim(rows, 0)
    axes.set_axis_off()
    for at, column in enumerate(drawn):
        mark = "" if column.normalised is not False else "\nnot normalised"
        axes.text(at + 0.05, -0.02, column.name + mark, fontsize=4.5, va="bottom",
                  color=_WRONG if column.flag else "black")  # fmt: skip
        last = len(column.stages) - 1
        for row, (label, values) in enumerate(column.stages):
            colour = _PLAIN if label == STORED else _FINE
            _draw(axes, at, row, values, _WRONG if column.flag and row == last else colour)
            axes.text(at + 0.05, row + 0.03, label, fontsize=4, va="top", color="#555555")
        if column.flag:
            axes.text(at + 1, rows, column.flag, fontsize=4.5, va="top", ha="right", color=_WRONG)


def _draw(axes: Any, at: int, row: int, values: NDArray[np.float32], colour: str) -> None:
    finite = values[np.isfinite(values)]
    words = "no number"
    if len(finite):
        counts, _ = np.histogram(finite, _BINS)
        heights = row + 0.82 - 0.6 * counts / counts.max()
        edges = at + 0.05 + 0.85 * np.arange(_BINS + 1) / _BINS
        axes.stairs(heights, edges, baseline=row + 0.82, fill=True, color=colour, linewidth=0)
        words = f"{finite.min():.3g} … {finite.max():.3g}"
        if finite.min() == finite.max():
            words = f"always {finite[0]:.3g}"
    axes.text(at + 0.05, row + 0.84, words, fontsize=4, va="top")
