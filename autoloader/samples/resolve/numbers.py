"""Binds what a sample holds of action and state, and says how wide they are in a batch.

Not here: the fields' own arithmetic (``transforms.fields``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloader.catalog import Feature
from autoloader.errors import SpecError
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.spec import FieldExpression, PipelineSpec, SampleSpec
from autoloader.transforms.fields import FieldName, NumericField, numeric_field


def bind_numbers(
    expressions: Mapping[FieldName, FieldExpression],
    sample: SampleSpec,
    features: Mapping[str, Feature],
    *,
    where: str,
    dataset: str,
) -> dict[FieldName, NumericField]:
    """The numeric fields of a dataset; those that it does not have are absent.

    Args:
        expressions: what each is, over ``features``.
        sample: what a sample of the dataset holds.
        features: of its episodes, by path.
        where: its path in the spec.
        dataset: its name.

    Raises:
        SpecError: a field cannot be had of these features, or a difference of columns that are
            not there is asked for.
    """
    fields = {
        name: numeric_field(expression, features, field=f"{where}.{name}", dataset=dataset)
        for name, expression in expressions.items()
    }
    _check_relative(sample, fields, where)
    return fields


def _check_relative(
    sample: SampleSpec, fields: Mapping[FieldName, NumericField], where: str
) -> None:
    """Refuse differences between columns that are not there."""
    place = f"{where}.sample.action_relative_to_state"
    for dim in sample.action_relative_to_state if "action" in fields else ():
        if "state" not in fields:
            raise SpecError(
                f"{place}: the dataset has an action, and no state to take away from it",
                remedy="name its state, or set sample: {action_relative_to_state: []} for it",
                path=place,
            )
        for name, bound in fields.items():
            if dim >= bound.width:
                raise SpecError(
                    f"{place}: {dim}, but {name} has {bound.width} columns",
                    remedy=f"name dims that action and state have; allowed: 0 to "
                    f"{min(one.width for one in fields.values()) - 1}",
                    path=place,
                )


def width_of(spec: PipelineSpec, datasets: Sequence[ResolvedDataset], name: FieldName) -> int:
    """Columns of ``action`` or ``state`` in a batch: the widest dataset's, or ``pad_to``.

    Raises:
        SpecError: a dataset has more columns than ``pad_to`` says.
    """
    widths = {dataset.name: bound.width for dataset in datasets if (bound := dataset.bound(name))}
    widest = max(widths.values(), default=0)
    fixed = spec.pad_to.get(name)
    if fixed is None:
        return widest
    if widest > fixed:
        dataset = next(one for one, width in widths.items() if width == widest)
        raise SpecError(
            f"pad_to.{name}: {fixed}, but dataset {dataset!r} has {widest} columns",
            remedy=f"set pad_to.{name} to at least {widest}",
            path=f"pad_to.{name}",
        )
    return fixed
