"""Resolves a spec for one split: every dataset bound, and the layout of their batches.

Not here: one dataset (``bind``), normalisation (``normalise``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoloader.catalog import files
from autoloader.errors import SpecError
from autoloader.samples.features import forms_of
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve.bind import bind_dataset
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.resolve.mixture import ResolvedMixture
from autoloader.samples.resolve.normalise import normalised
from autoloader.samples.resolve.sources import find_sources
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec
from autoloader.telemetry.progress import doing, told
from autoloader.transforms.fields import FieldName


def resolve(
    spec: PipelineSpec, split: str = "train", *, once_found: Callable[[], object] | None = None
) -> ResolvedMixture:
    """Open every dataset's metadata and bind the spec's fields to it.

    Reads no data, but one episode of a dataset that has a transform, to try it.

    Nothing is normalised yet: see ``normalised``.

    Args:
        spec: the mixture.
        split: which of its splits.
        once_found: called when the local datasets are known to be there, before any is opened:
            what takes long can begin meanwhile.

    Raises:
        SourceError: a dataset's directory is missing or broken.
        SpecError: a split, feature or width that cannot be.
    """
    bound = []
    with told("reading metadata"):
        sources = find_sources(spec, split)
        if once_found is not None:
            once_found()
        files.ask_ahead([path for source in sources for path in source.metadata_files()])
        for index, source in enumerate(sources):
            doing(f"dataset {source.declared.name} ({index + 1} of {len(sources)})")
            bound.append(bind_dataset(source, index))
    datasets = tuple(bound)
    first = datasets[0].sample
    layout = BatchLayout(
        batch_size=spec.batch.size,
        cameras={name: camera.size for name, camera in spec.cameras.items()},
        frames=first.frames,
        action_rows=first.action_rows,
        action_width=_width_of(spec, datasets, "action"),
        state_rows=len(first.state_offsets),
        state_width=_width_of(spec, datasets, "state"),
        action_steps=first.action_steps,
        called={k: (g.dtype, g.shape) for k, g in spec.batch.gives.items() if g.dtype != "text"},
        depth={name: camera.depth for name, camera in spec.cameras.items() if camera.depth},
        features=forms_of([(dataset.name, dataset.held) for dataset in datasets]),
    )
    return ResolvedMixture(spec, split, datasets, layout)


def resolve_plain(plain: Mapping[str, Any]) -> ResolvedMixture:
    """The mixture that another process resolved, from ``ResolvedMixture.plain``.

    Raises:
        SourceError, SpecError: the files are no longer as they were there.
    """
    mixture = resolve(PipelineSpec.model_validate(plain["spec"]), plain["split"])
    if (known := plain["statistics"]) is None:
        return mixture
    found = {name: NormalizationStatistics.from_plain(one) for name, one in known.items()}
    return normalised(mixture, found)


def _width_of(spec: PipelineSpec, datasets: Sequence[ResolvedDataset], name: FieldName) -> int:
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
