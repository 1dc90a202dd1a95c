"""Binds what a sample holds of action and state.

Not here: the fields' own arithmetic (``fields``), terms that need whole episodes (``derive``).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloader.catalog import Feature
from autoloader.errors import SpecError
from autoloader.spec import FieldExpression, SampleSpec
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
