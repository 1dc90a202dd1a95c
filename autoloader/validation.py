"""Validation sets: which samples a validation sees, as specs and as loaders that begin anew.

Theory of operation. A loader's sequence is a function of seed, spec and files, so its first n
samples are the same whenever it begins at position 0, whatever the knobs: a validation set is an
epoch of n samples that is gone back to. With ``validation.per_dataset`` every dataset of the split
has a loader of its own; widths stay those of the whole mixture, so that one model takes them all.

Invariants:
    1. Every iteration of a ``ValidationLoader`` gives the same samples in the same batches.
    2. No sample comes twice in a validation of one dataset.

Not here: parking the training loader meanwhile, and Lightning (``integrations.lightning``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoloader.batch import Batch
from autoloader.index.counting import count_mixture
from autoloader.loader import AutoLoader
from autoloader.process.planning import choose_reader
from autoloader.samples.resolve import ResolvedMixture, resolve
from autoloader.spec import CurriculumSpec, PipelineSpec, SpecSource


def validation_specs(
    spec: PipelineSpec, split: str = "val", *, per_dataset: bool | None = None
) -> dict[str, PipelineSpec]:
    """The spec of each validation loader, by name; an epoch of it is what a validation sees.

    Weights that move (``weights: {from: …, to: …}``) are those of the end. A dataset of weight 0
    has a loader of its own with ``per_dataset``.

    Open them with ``AutoLoader(spec, split=split, reproducible=True)``. The name is the dataset's
    with ``per_dataset``, else the split's. An epoch has ``validation.samples`` samples (each loader
    as many), or all where there are fewer; its last batch may be smaller.

    Args:
        spec: the pipeline spec of the mixture.
        split: of each dataset; those that say ``null`` to it have no part.
        per_dataset: over the spec's ``validation.per_dataset``.

    Returns:
        Empty where no dataset has a part.

    Raises:
        SpecError: some datasets have such a split, and others do not say that they have none.
        SourceError: a dataset cannot be read, or gives no sample.
    """
    names = [one.name for one in spec.datasets if one.split.get(split) is not None]
    if not names:
        return {}
    whole = resolve(spec, split)
    counts = count_mixture(
        whole,
        by_index=spec.reader != "stream",
        fetch=choose_reader(whole, "auto")[0] == "indexed",
    )
    apart = spec.validation.per_dataset if per_dataset is None else per_dataset
    if not apart:
        spec = _settled(spec)
        total = sum(count.samples for count in counts.values())
        return {split: _epoch(spec, total)}
    wide = spec.model_copy(update={"pad_to": _widths(whole)})
    return {name: _epoch(_only(wide, split, [name]), counts[name].samples) for name in names}


def _only(spec: PipelineSpec, split: str, names: list[str]) -> PipelineSpec:
    """The spec with ``split: {SPLIT: null}`` for every other dataset; weights have no say."""
    datasets = [
        one.model_copy(update={"weight": 1.0})
        if one.name in names
        else one.model_copy(update={"split": {**one.split, split: None}})
        for one in spec.datasets
    ]
    return spec.model_copy(update={"datasets": tuple(datasets), "weights": "explicit"})


def _settled(spec: PipelineSpec) -> PipelineSpec:
    """The spec with the last weights of a schedule, so that all validations are of one mixture."""
    moves = spec.weights
    if not isinstance(moves, CurriculumSpec):
        return spec
    datasets = [
        one.model_copy(update={"weight": moves.to.get(one.name, one.weight)})
        for one in spec.datasets
    ]
    return spec.model_copy(update={"datasets": tuple(datasets), "weights": moves.kind})


def _epoch(spec: PipelineSpec, available: int) -> PipelineSpec:
    """The spec with an epoch of the validation's samples, of ``available`` ones at most.

    Without ``mixing.chain`` and ``mixing.locality``, so that few samples come from as many
    episodes as possible.
    """
    samples = min(spec.validation.samples, available)
    return spec.model_copy(
        update={
            "batch": spec.batch.model_copy(update={"drop_last": False}),
            "mixing": spec.mixing.model_copy(
                update={"epoch": samples, "chain": False, "locality": None}
            ),
        }
    )


def _widths(mixture: ResolvedMixture) -> Mapping[str, int]:
    layout = mixture.layout
    widths = {"action": layout.action_width, "state": layout.state_width}
    return {field: width for field, width in widths.items() if width}


class IdleLoader(AutoLoader):
    """An ``AutoLoader`` that reads nothing before its first batch is asked for, or ``prepare``."""

    _starts_at_once = False


class ValidationLoader:
    """An ``AutoLoader`` whose every iteration begins with the first sample.

    Args:
        spec: a spec that ``validation_specs`` returned.
        split: name of the split, as for ``validation_specs``.
        options: keyword arguments, as for ``AutoLoader``.

    Attributes:
        loader: the loader; its batches and statistics.
    """

    def __init__(self, spec: PipelineSpec, split: str = "val", **options: Any) -> None:
        self.loader = AutoLoader(spec, split=split, **{"reproducible": True, **options})
        self._beginning = self.loader.state_dict()

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names that ``batch["dataset_index"]`` counts."""
        return self.loader.dataset_names

    def __len__(self) -> int:
        """Batches of a validation; the last one may be smaller."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a validation, from the first, however the last iteration ended."""
        if self.loader.batches != self._beginning["batches"]:
            self.loader.load_state_dict(self._beginning)
        return iter(self.loader)

    def close(self) -> None:
        """Stop everything; batches already handed out stay valid. May be called twice."""
        self.loader.close()

    def __enter__(self) -> ValidationLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def validation_loaders(
    spec: SpecSource, split: str = "val", **options: Any
) -> dict[str, ValidationLoader]:
    """The validation loaders of a spec, by name (``validation_specs``); the caller closes them.

    Args:
        spec: a ``PipelineSpec``, or the path of one.
        split: name of the split of each dataset.
        options: as for ``AutoLoader``, for each of them.

    Raises:
        SpecError, SourceError, ProfileError, KnobError, BudgetInfeasibleError: as ``AutoLoader``
            does; those opened before are closed again.
    """
    spec = PipelineSpec.of(spec)
    found: dict[str, ValidationLoader] = {}
    try:
        for name, own in validation_specs(spec, split).items():
            found[name] = ValidationLoader(own, split, **options)
    except BaseException:
        for loader in found.values():
            loader.close()
        raise
    return found
