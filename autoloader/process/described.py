"""Read-only properties of a loader that need no running pipeline: names, lengths, position.

Not here: what it does (``loader``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from autoloader.host.threads import OfOneProcess, Owner
from autoloader.index.statistics_files import statistics_document
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.process.planning import LoaderPlan
from autoloader.process.ranks import Neighbours, gathered
from autoloader.samples.resolve import SampleLocation, locate
from autoloader.sampling.dealing import Ranks
from autoloader.spec import PipelineSpec
from autoloader.telemetry.statistics import Statistics


class PlannedLoader(OfOneProcess):
    """The names, ranks, place and scales of a loader.

    Attributes:
        plan: what was decided before it started.
    """

    plan: LoaderPlan
    owner: Owner
    _ranks: Ranks
    _spec: PipelineSpec
    _neighbours: Neighbours

    @property
    @abstractmethod
    def _progress(self) -> DeliveryProgress:
        """Progress of everything that was handed out."""

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names that ``batch["dataset_index"]`` counts."""
        return self.plan.mixture.names

    @property
    def rank(self) -> int:
        """Which of ``world_size`` trainers this one is, from 0."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of trainers that share the sequence."""
        return self._ranks.world_size

    def __len__(self) -> int:
        """Batches of the current epoch, those handed out included; the same for every rank.

        Raises:
            TypeError: the epoch is endless.
        """
        left = self._steps_left()
        if left is None:
            raise TypeError("mixing.epoch is forever: this loader has no length")
        return self._progress.epoch_steps + left

    def _steps_left(self) -> int | None:
        self.owner.check()
        return self._progress.steps_left

    @abstractmethod
    def statistics(self) -> Statistics:
        """See ``AutoLoader.statistics``."""

    @property
    def spans_nodes(self) -> bool:
        """True if there are ranks on other nodes than this one."""
        return self.world_size > self._neighbours.local_world_size

    def metrics(
        self, statistics: Statistics | None = None, *, all_ranks: bool = False
    ) -> dict[str, float]:
        """Figures for any logger, by name: ``wait_ratio``, ``dataset_share/bridge``.

        Of several ranks also the worst and the mean (``wait_ratio/worst``).
        docs/reference/metrics.md says what each means; what is not measured is not there.

        Args:
            statistics: the snapshot; default: one of now.
            all_ranks: worst and mean are over all ranks of all nodes, not of this node alone.
                ``torch.distributed`` gathers four numbers, so every rank must call it, at the same
                step.

        Raises:
            UsageError: ``all_ranks`` where ``torch.distributed`` is not initialised.
        """
        from autoloader.telemetry.metrics import COMPARED, compared, flat, over_ranks

        own = flat(self.statistics() if statistics is None else statistics)
        if self.world_size == 1:
            return own
        if all_ranks:
            names = [metric.name for metric in COMPARED]
            told = gathered([own.get(name, math.nan) for name in names])
            every = [
                {name: value for name, value in zip(names, one, strict=True) if value == value}
                for one in told
            ]
            return own | over_ranks(every)
        from autoloader.telemetry.run_record import living_runs

        others = [
            compared(one)
            for one in living_runs()
            if one.node == self._neighbours.job
            and one.rank != self.rank
            and one.split == self.plan.mixture.split
        ]
        return own | over_ranks([own, *others])

    @property
    def batches(self) -> int:
        """Batches that this rank has got since the run began, resumes included."""
        return self._progress.batches

    @property
    def normalization(self) -> dict[str, Any] | None:
        """Statistics of the normalisation, to be saved with the model; ``None`` if there is none.

        By dataset: ``action`` and ``proprio`` (the state) with ``mean``, ``std``, ``max``, ``min``,
        ``q01``, ``q99`` and ``mask`` (the columns that are normalised), ``num_transitions`` and
        ``num_trajectories``: the layout of Octo's and OpenVLA's ``dataset_statistics.json``, as
        NumPy arrays (float64, and bool for the mask), as both hold it.
        """
        found = self.plan.mixture.statistics
        if found is None:
            return None
        document = statistics_document(self._spec, found, self.dataset_names)
        return {
            name: {
                field: {key: np.asarray(column) for key, column in one.items()}
                if isinstance(one, dict)
                else one
                for field, one in entry.items()
            }
            for name, entry in document.items()
        }

    def locate(self, provenance: Any) -> SampleLocation:
        """The file, record and t of one row of ``batch["provenance"]``."""
        return locate(self.plan.mixture, provenance)
