"""The disturbances that the controller is held to, on a plant.

Each scenario begins where the knobs are the smallest legal ones, disturbs at ``DISTURBED_S``, and
is judged from ``SETTLED_S`` on.

Not here: judging (the tests do).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoloader.host.units import GIB, MIB
from autoloader.spec.knobs import Knobs
from simulated.plant import Plant, PlantModel

DISTURBED_S = 90.0
SETTLED_S = 150.0
ENDS_S = 210.0
FLOOR_BYTES = 2 * GIB

WORST_SMALL: Mapping[str, int] = {
    "ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1, "queue_samples": 1,
    "stream_prefetch": 0,
}  # fmt: skip
WORST_LARGE: Mapping[str, int] = {
    "ring_slots": 64, "decode_threads": 16, "io_threads": 32, "read_ahead": 64,
    "queue_samples": 512, "cycle_length": 8, "num_parallel_calls": 8,
}  # fmt: skip
AMPLE: Mapping[str, int] = {
    "ring_slots": 24, "decode_threads": 6, "io_threads": 4, "read_ahead": 12,
    "queue_samples": 256, "cycle_length": 2, "num_parallel_calls": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        name: its name.
        disturb: called before each 0.1 s.
        model: what the machine is like at first.
        knobs: to begin with.
    """

    name: str
    disturb: Callable[[Plant], None]
    model: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, int] = field(default_factory=lambda: dict(WORST_SMALL))

    def plant(self, reader: str, *, seed: int = 0, knobs: Mapping[str, int] | None = None) -> Plant:
        """The plant at its beginning."""
        values = {"reader": reader, **(self.knobs if knobs is None else knobs)}
        return Plant(PlantModel(**self.model), Knobs.build(values), seed=seed)


def _at(**values: Any) -> Callable[[Plant], None]:
    """From ``DISTURBED_S`` on the model has these values."""
    return _between(DISTURBED_S, float("inf"), **values)


def _between(start_s: float, end_s: float, **values: Any) -> Callable[[Plant], None]:
    """Between two times the model has these values, before and after its own."""
    kept: dict[int, dict[str, Any]] = {}

    def disturb(plant: Plant) -> None:
        before = kept.setdefault(id(plant), {key: getattr(plant.model, key) for key in values})
        on = start_s <= plant.now_s < end_s
        for key, value in values.items():
            setattr(plant.model, key, value if on else before[key])

    return disturb


def _neighbour(plant: Plant) -> None:
    """Takes memory at 1 GiB/s until 200 MiB above the floor, holds it for 40 s, lets go."""
    if DISTURBED_S <= plant.now_s < DISTURBED_S + 40:
        room = plant.headroom_bytes - (FLOOR_BYTES + 200 * MIB)
        if room > 0:
            plant.model.neighbour_bytes += min(room, 0.1 * GIB)
    else:
        plant.model.neighbour_bytes = 0.0


def _lowered(plant: Plant) -> None:
    if plant.now_s >= DISTURBED_S and plant.model.limit_bytes is None:
        plant.model.limit_bytes = plant.held_bytes + FLOOR_BYTES + 0.1 * GIB


def _validation(plant: Plant) -> None:
    """After every 20 s of training, 6 s of something else."""
    plant.model.away = plant.now_s % 26 >= 20


def _flapping(plant: Plant) -> None:
    """A neighbour that comes and goes every five seconds."""
    away = plant.now_s < DISTURBED_S or plant.now_s > DISTURBED_S + 25
    on = not away and int(plant.now_s / 5) % 2 == 0
    plant.model.neighbour_bytes = plant.model.total_bytes * 0.5 if on else 0.0


def _steady(plant: Plant) -> None:
    del plant


SCENARIOS: Mapping[str, Scenario] = {
    one.name: one
    for one in (
        Scenario("steady", _steady),
        Scenario("worst knobs, small", _steady, knobs=WORST_SMALL),
        Scenario("worst knobs, large", _steady, knobs=WORST_LARGE),
        Scenario("consumer 10 times faster", _at(step_s=0.04), {"step_s": 0.4}),
        Scenario("consumer 10 times slower", _at(step_s=0.4)),
        Scenario("frames 8 times larger", _at(frame_factor=8.0), {"step_s": 0.2}),
        Scenario("a dataset stalls", _between(90, 105, stalled=frozenset({"b"}))),
        Scenario("storage 5 times slower", _at(storage_factor=5.0)),
        Scenario("a neighbour takes memory", _neighbour, {"total_bytes": 8 * GIB}, AMPLE),
        Scenario("a neighbour takes processors", _at(neighbour_cpus=2.0)),
        Scenario("the cgroup is lowered", _lowered, {"total_bytes": 8 * GIB}, AMPLE),
        Scenario("validation", _validation),
        Scenario("the GPU is saturated", _at(gpu_busy_ratio=0.99), {"gpu_busy_ratio": 0.6}),
        Scenario("NVML dies", _at(gpu_busy_ratio=None), {"gpu_busy_ratio": 0.6}),
        Scenario(
            "pressure rises", _between(90, 110, pressure_percent=60.0), {"total_bytes": 3.5 * GIB}
        ),
        Scenario("probes go stale", _between(90, 130, silent=True)),
        Scenario("a flapping disturbance", _flapping, {"total_bytes": 5 * GIB}),
    )
}
