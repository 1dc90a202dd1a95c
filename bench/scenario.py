"""What a scenario file may say: contenders, the turn they get, and the figures read from it.

Not here: running one (``bench.runner``), working out its figures (``bench.figures``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from ruamel.yaml import YAML

from bench.peers import KINDS

FOLDER = Path(__file__).with_name("scenarios")

Measure = Literal[
    "samples_per_s",
    "first_batch_s",
    "opened_batch_s",
    "close_s",
    "peak_bytes",
    "cpu_ms_per_sample",
    "decodes_per_sample",
    "distinct_episodes",
    "storage_correlation",
    "same_episode_ratio",
]


class Strict(BaseModel):
    """A mapping of a file, all of whose names are known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ContenderSpec(Strict):
    """Who takes part.

    Attributes:
        name: as the table calls it
        kind: of `bench.peers.KINDS`
        data: mixture, where it is not the scenario's
        cpus: processors it may use; default all
        warmup_batches: where not as the scenario's
        cold: its files are dropped from the page cache before
    """

    name: str
    kind: str
    data: str | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)
    cpus: int | None = Field(None, ge=1)
    warmup_batches: int | None = Field(None, ge=0)
    cold: bool = False

    @field_validator("kind")
    @classmethod
    def _kind_exists(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
        return kind


class FigureSpec(Strict):
    """One row of the result.

    ``ratio``: of one contender against the best of others, pair by pair. ``value``: of one
    contender. ``spread``: of a contender against itself; what a difference must exceed.
    ``share_error``: percentage points between shares and weights.

    Attributes:
        gate: what ``bench.gate`` holds a ratio to: the interval of another run, or, where the two
            sides differ from host to host, the figure's own target
    """

    title: str
    kind: Literal["ratio", "value", "spread", "share_error"]
    of: str
    against: tuple[str, ...] = ()
    measure: Measure = "samples_per_s"
    stretch: Literal["running", "whole", "window"] = "whole"
    at_least: float | None = None
    at_most: float | None = None
    gate: Literal["interval", "target"] = "interval"
    unit: Literal["×", "s", "bytes", "pp", "%", "ms", "decodes", "episodes", ""] = "×"


class Scenario(Strict):
    """One scenario file.

    A file may say what all its contenders have in ``common`` (kind, data, settings, which a
    contender's own are laid over), and with ``ladder: NAME`` that every other contender is held
    against that one in samples/s.

    Attributes:
        short: whether ``make bench`` runs it, within its ten minutes
        pairs: rounds; six are the fewest that give a 95 % interval
        count_samples: count datasets instead of timing
        count_blocks: stretch over which shares are taken
    """

    name: str
    about: str
    short: bool = False
    data: str = "demo"
    contenders: tuple[ContenderSpec, ...] = Field(min_length=1)
    warmup_batches: int = Field(8, ge=0)
    window_s: float = Field(5.0, gt=0)
    pairs: int = Field(6, ge=1)
    count_samples: int | None = None
    count_blocks: int = Field(2000, ge=1)
    figures: tuple[FigureSpec, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        plain = dict(raw)
        common, base = plain.pop("common", {}), plain.pop("ladder", None)
        contenders = [
            {**common, **one, "settings": {**common.get("settings", {}), **one.get("settings", {})}}
            for one in plain.get("contenders", ())
        ]
        if common:
            plain["contenders"] = contenders
        if base is not None:
            steps = [
                {
                    "title": f"{one['name']}, samples/s against {base}",
                    "kind": "ratio",
                    "of": one["name"],
                    "against": [base],
                }
                for one in contenders
                if one["name"] != base
            ]
            plain["figures"] = [*plain.get("figures", ()), *steps]
        return plain

    @model_validator(mode="after")
    def _names_exist(self) -> Scenario:
        known = {one.name for one in self.contenders}
        if len(known) != len(self.contenders):
            raise ValueError("two contenders have the same name")
        for figure in self.figures:
            for name in (figure.of, *figure.against):
                if name not in known:
                    raise ValueError(f"figure {figure.title!r} names {name!r}, no contender")
        return self

    def without(self, names: Collection[str]) -> Scenario | None:
        """The scenario without some contenders and the figures that need them.

        A figure against several keeps those that take part. ``None`` where nobody is left.
        """
        left = [one for one in self.contenders if one.name not in names]
        figures = []
        for figure in self.figures:
            against = tuple(name for name in figure.against if name not in names)
            if figure.of not in names and (against or not figure.against):
                figures.append(figure.model_copy(update={"against": against}))
        if not left:
            return None
        return self.model_copy(update={"contenders": tuple(left), "figures": tuple(figures)})

    def warmup_of(self, contender: ContenderSpec) -> int:
        """Batches that a contender gives before its window begins."""
        own = contender.warmup_batches
        return self.warmup_batches if own is None else own

    def data_of(self, contender: ContenderSpec) -> str:
        """The mixture a contender reads."""
        return contender.data or self.data


def load_scenarios() -> dict[str, Scenario]:
    """Every scenario file, by name, in the order of their file names."""
    return read_folder(FOLDER, Scenario)


_Kind = TypeVar("_Kind", bound=BaseModel)


def read_folder(folder: Path, kind: type[_Kind]) -> dict[str, _Kind]:
    """The files of a folder, checked, by the name that each gives itself."""
    read = [YAML(typ="safe").load(path) for path in sorted(folder.glob("*.yaml"))]
    return {raw["name"]: kind.model_validate(raw) for raw in read}
