"""Setup of a pipeline, as the trainer makes it and as the loader's process opens it.

Not here: what is decided before (``process.planning``), opening and governing a pipeline
(``process.control``), how the trainer's side tells it (``process.child``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from autoloader.controller.limits import ControlRequest
from autoloader.decode.message import PipelineStart
from autoloader.decode.ring import RingMemory
from autoloader.host.frozen import frozen
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs


@frozen
class PipelineSetup:
    """Everything that one pipeline needs from its loader.

    Attributes:
        mixture: the rank's part of the mixture.
        order: the rank's part of the order.
        knobs: the values to begin with; checked by the caller.
        memory: shared memory of the batch ring, where the consumer's counts and waits are read.
        control: request to the controller.
        ranks: rank of the loader's trainer, and number of trainers.
        ranks_here: trainers whose pipelines share the process, and its memory.
        position: says where to begin, whenever it begins.
        lent: says which slots of the ring the consumer still has.
        restarts: number of times that the trainer had its process started again.
    """

    mixture: ResolvedMixture
    order: MixtureOrder
    knobs: Knobs
    memory: RingMemory
    control: ControlRequest
    ranks: Ranks
    ranks_here: int
    position: Callable[[], PipelineStart]
    lent: Callable[[], Collection[int]]
    restarts: int = 0
