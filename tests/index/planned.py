"""Mixtures of tables that no files stand behind, and what is planned of them."""

from autoloader.samples import draws
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import PlannedSamples


def mixture_of(
    datasets: list[DatasetTable], weights: list[float], block_length: int, *, by_pass: bool
) -> MixtureOrder:
    return MixtureOrder(
        shares=tuple(weight / sum(weights) for weight in weights),
        phases=tuple(draws.unit(draws.fold(d.key, draws.PURPOSE_PHASE)) for d in datasets),
        block_length=block_length,
        pass_samples=tuple(d.samples for d in datasets) if by_pass else None,
        epoch_samples=sum(d.samples for d in datasets) if by_pass else None,
    )


def listed(planned: PlannedSamples) -> list[tuple[int, ...]]:
    columns = (planned.dataset, planned.pass_, planned.episode, planned.t)
    return list(zip(*(column.tolist() for column in columns), strict=True))
