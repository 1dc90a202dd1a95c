"""Runs loader machines of each sort until so many rows were held against what lies on disk.

Not here: what a machine does (``loader_machine``), two million rows of it (``make hunt``).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest.mock import patch

from coded_rows import CodedRows
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from loader_machine import FoundError, LoaderMachine, Tally

from autoloader.process import delivery


class Sort(NamedTuple):
    """What machines are about: a reader, and the world sizes that a run may be resumed with."""

    reader: str
    world_sizes: tuple[int, ...]


SORTS = tuple(Sort(reader, sizes) for reader in ("indexed", "stream") for sizes in ((1,), (1, 2)))


def run_machines(
    rows: CodedRows,
    at_least: int,
    tally: Tally,
    *,
    first_seed: int = 0,
    sorts: Sequence[Sort] = SORTS,
    times: int = 1,
    steps: int = 10,
    stops: bool = False,
) -> Iterator[str]:
    """Run machines of each sort in turn until at least so many rows were compared; says which.

    Each takes so many ``steps``, and reads so many ``times`` what is drawn; with ``stops`` one of
    four also stops processes for good. However soon the next batch is asked for, it is made
    beside, where it has come.
    """
    for number in itertools.count(first_seed):
        if tally.rows >= at_least:
            return
        sort = sorts[number % len(sorts)]
        what = f"seed {number}, {sort.reader}, ranks {' or '.join(map(str, sort.world_sizes))}"
        values = {
            "rows": rows,
            "tally": tally,
            "reader": sort.reader,
            "world_sizes": sort.world_sizes,
            "times": times,
            "may_stop": stops and number // len(sorts) % 4 == 0,
        }
        machine: type[LoaderMachine] = type("LoaderMachine", (LoaderMachine,), values)
        try:
            with patch.object(delivery, "_SHORT_STEP_S", 0.0):
                run_state_machine_as_test(
                    seed(number)(machine),
                    settings=settings(
                        max_examples=2,  # the first is the shortest there is
                        stateful_step_count=steps,
                        deadline=None,
                        database=None,
                        derandomize=False,
                        phases=[Phase.explicit, Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    ),
                )
        except FoundError as found:
            raise AssertionError(f"{what}: after\n{found}\n{found.__cause__}") from found.__cause__
        yield what
