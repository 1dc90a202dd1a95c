"""The loader itself, by its front door.

Not here: what its knobs mean; a scenario may set any of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec


class Loader:
    """The contender.

    Settings: ``profile``, ``isolation``, ``ram_floor``, ``busy`` (share of a core that the
    consumer's process computes in Python meanwhile), ``mixing`` (over the spec's), and any knob.
    """

    def __init__(self, spec: Path, settings: Mapping[str, Any]) -> None:
        knobs = dict(settings)
        if busy := knobs.pop("busy", 0):
            threading.Thread(target=_compute, args=(busy,), daemon=True).start()
        call = {name: knobs.pop(name) for name in ("isolation", "ram_floor") if name in knobs}
        self._loader = AutoLoader(
            _mixed(spec, knobs.pop("mixing", {})),
            profile=knobs.pop("profile", "local_dev"),
            knobs=knobs,
            controller=False,
            output="numpy",
            **call,
        )
        self.datasets = len(self._loader.dataset_names)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while True:
            for batch in self._loader:
                yield {**batch, "images": batch["images"]["primary"]}

    @property
    def shares(self) -> list[float]:
        """What share each dataset should have."""
        told = self._loader.statistics().datasets
        return [told[name].weight for name in self._loader.dataset_names]

    @property
    def decodes_per_sample(self) -> float | None:
        """Frames decoded for a sample so far."""
        return self._loader.statistics().decodes_per_sample

    def close(self) -> None:
        """Ends it."""
        self._loader.close()


def _mixed(path: Path, mixing: Mapping[str, Any]) -> PipelineSpec:
    """The spec with other words on mixing."""
    spec = PipelineSpec.from_yaml(path)
    if not mixing:
        return spec
    plain = spec.model_dump(mode="json")
    plain["mixing"] |= mixing
    return PipelineSpec.from_mapping(plain, folder=path.parent)


def _compute(share: float, slice_s: float = 0.01) -> None:
    """Pure Python for a share of the time, as a trainer's own loop would."""
    while True:
        until = time.perf_counter() + slice_s * share
        while time.perf_counter() < until:
            sum(range(50))
        time.sleep(slice_s * (1 - share))
