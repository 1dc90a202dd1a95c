"""What the ranks of a torch example must agree on: the error of a validation, and when to stop."""

import signal
from collections.abc import Iterable

import torch
from torch import distributed, nn

from autoloader import Batch


def summed(*numbers: float) -> list[float]:
    """Each number, added up over all ranks. Every rank must call it."""
    every = [numbers]
    if distributed.is_initialized():
        every *= distributed.get_world_size()
        distributed.all_gather_object(every, numbers)
    return [sum(column) for column in zip(*every, strict=True)]


@torch.no_grad()
def validated(policy: nn.Module, batches: Iterable[Batch]) -> float:
    """Mean error over the batches of all ranks, of which each has its own part."""
    policy.eval()
    errors = [policy(batch).item() for batch in batches]
    policy.train()
    total, count = summed(sum(errors), len(errors))
    return total / count


class Stop:
    """Remembers Ctrl-C and SIGTERM until the step under way is done."""

    def __init__(self) -> None:
        self._told = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    def asked(self) -> bool:
        """Whether any rank was told to stop. Every rank must ask, after the same step."""
        return summed(self._told) != [0]
