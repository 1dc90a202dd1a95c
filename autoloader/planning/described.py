"""What a loader says of itself by its plan and its place, whether it runs or not.

Not here: what it does (``loader``).
"""

from __future__ import annotations

from typing import Any

from autoloader.host.owner import OfOneProcess, Owner
from autoloader.order.dealing import Ranks
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.planning.start import LoaderPlan
from autoloader.samples.location import SampleLocation, locate
from autoloader.spec import PipelineSpec
from autoloader.statistics import statistics_document


class PlannedLoader(OfOneProcess):
    """The names, ranks, place and scales of a loader.

    Attributes:
        plan: what was decided before it started.
    """

    plan: LoaderPlan
    owner: Owner
    _ranks: Ranks
    _spec: PipelineSpec
    _progress: DeliveryProgress

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
        """How many trainers share the sequence."""
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

    @property
    def batches(self) -> int:
        """Batches that this rank has got since the run began, resumes included."""
        return self._progress.batches

    @property
    def normalization(self) -> dict[str, Any] | None:
        """What the batches are normalised by, to be saved with the model; ``None`` if they are not.

        By dataset: ``action`` and ``proprio`` (the state) with ``mean``, ``std``, ``max``, ``min``,
        ``q01``, ``q99`` and ``mask`` (the columns that are normalised), ``num_transitions`` and
        ``num_trajectories``: the layout of Octo's and OpenVLA's ``dataset_statistics.json``.
        """
        found = self.plan.mixture.statistics
        return None if found is None else statistics_document(self._spec, found, self.dataset_names)

    def locate(self, provenance: Any) -> SampleLocation:
        """The file, record and t of one row of ``batch["provenance"]``."""
        return locate(self.plan.mixture, provenance)
