"""A mixture's episodes in Python, and where a peer keeps what it made of them.

Peers that read files of their own (ArrayRecord, Arrow) are given a conversion: one row for each
frame, still encoded, with action and state as the mixture declares them. Conversions lie beside the
bench's other data in the cache directory, under a key of the mixture file and its shards, and are
written whole or not at all.

Not here: a peer's own format (its module).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.storage.places import cache_root
from bench.mixture import MixedDataset, Mixture, Term, read_mixture
from bench.records import parse_example, read_records
from bench.versions import build_whole

FORMAT = 1
"""Raised when the same mixture is converted into something else."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode of a mixture.

    Attributes:
        frames: encoded, one a step.
        action, state: ``[T, width]``, the dataset's own widths.
        language: one a step.
    """

    frames: list[bytes]
    action: NDArray[np.float32]
    state: NDArray[np.float32]
    language: list[str]


def read_episodes(dataset: MixedDataset, seed: int = 0) -> Iterator[Episode]:
    """A dataset's episodes as they are stored.

    Where an episode has several instructions, one is drawn.
    """
    rng = np.random.default_rng(seed)
    terms = (*dataset.action, *dataset.state)
    wanted = {dataset.image, *(term.feature for term in terms), *dataset.language}
    for path, count in dataset.files:
        for _, record in zip(range(count), read_records(Path(path)), strict=False):
            example = parse_example(record, wanted)
            frames = example[dataset.image]
            assert isinstance(frames, list)
            language = [""] * len(frames)
            if dataset.language:
                drawn = dataset.language[int(rng.integers(len(dataset.language)))]
                language = _words(example[drawn], len(frames), drawn.startswith("steps/"))
            yield Episode(
                frames,
                _field(dataset.action, example, len(frames)),
                _field(dataset.state, example, len(frames)),
                language,
            )


def _field(terms: Sequence[Term], example: Any, steps: int) -> NDArray[np.float32]:
    pieces = [np.zeros((steps, 0), np.float32)]
    for term in terms:
        piece = np.asarray(example[term.feature], np.float32).reshape(steps, -1)
        piece = piece[:, term.start : term.stop]
        for name, *arguments in term.ops:
            piece = np.clip(piece, *arguments) if name == "clip" else 1 - piece
        pieces.append(piece)
    return np.concatenate(pieces, 1)


def _words(values: Any, steps: int, each: bool) -> list[str]:
    if isinstance(values, np.ndarray):
        # Integers are code points with zeros behind them.
        rows = values.reshape(steps if each else 1, -1)
        found = ["".join(map(chr, row[row > 0])) for row in rows]
    else:
        found = [value.decode() for value in values]
    return found if each else found * steps


@dataclass(frozen=True, slots=True)
class Layout:
    """What a conversion's reader must know of it.

    Attributes:
        lengths: dataset → steps of each episode, as they are stored.
        action, state: dataset → its own width; rows are as wide as the widest.
    """

    lengths: list[list[int]]
    action: list[int]
    state: list[int]

    @classmethod
    def read(cls, place: Path) -> Layout:
        """The layout of the conversion in ``place``."""
        return cls(**json.loads((place / "layout.json").read_text()))

    def write(self, place: Path) -> None:
        """Keeps it in ``place``."""
        (place / "layout.json").write_text(json.dumps(asdict(self)))


class Windows:
    """Which rows a sample of a conversion needs, and what is the same for all of its dataset.

    Args:
        layout: of the conversion.
        dataset: which one.
        offsets: of the frames.
    """

    def __init__(self, layout: Layout, dataset: int, offsets: Sequence[int]) -> None:
        self._dataset = np.int64(dataset)
        self._offsets = tuple(offsets)
        lengths = np.array(layout.lengths[dataset])
        self._episode = np.repeat(np.arange(len(lengths)), lengths)
        self._first = (np.cumsum(lengths) - lengths)[self._episode]
        self._last = self._first + lengths[self._episode] - 1
        self.widths = (max(layout.action), max(layout.state))
        own = (layout.action[dataset], layout.state[dataset])
        self._masks = [
            (np.arange(width) < mine)[None] for width, mine in zip(self.widths, own, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._episode)

    def rows(self, index: int) -> list[int]:
        """The row of each frame; outside the episode it is the nearest one inside."""
        first, last = int(self._first[index]), int(self._last[index])
        return [min(max(index + offset, first), last) for offset in self._offsets]

    def told(self, index: int) -> dict[str, Any]:
        """What is known without reading."""
        first, last = int(self._first[index]), int(self._last[index])
        inside = [first <= index + offset <= last for offset in self._offsets]
        return {
            "frame_mask": np.array(inside),
            "action_mask": self._masks[0],
            "state_mask": self._masks[1],
            "dataset_index": self._dataset,
            "episode_index": self._episode[index],
            "step": np.int64(index - first),
        }


def conversion(spec: Path, kind: str, write: Callable[[Mixture, Path], Layout]) -> Path:
    """The folder of a mixture's conversion, made by ``write`` on first use.

    Args:
        spec: the mixture file.
        kind: names the format.
        write: puts a mixture's rows into an empty folder.
    """
    mixture, place = read_mixture(spec), place_of(spec, kind)
    if not place.exists():
        build_whole(place, lambda partial: write(mixture, partial).write(partial))
    return place


def place_of(spec: Path, kind: str) -> Path:
    """The folder of a mixture's conversion, whether it is there or not."""
    mixture = read_mixture(spec)
    key = hashlib.sha256(spec.read_bytes())
    for dataset in mixture.datasets:
        for path, count in dataset.files:
            about = Path(path).stat()
            key.update(f"{path} {count} {about.st_size} {about.st_mtime_ns}\n".encode())
    return cache_root() / "bench" / f"{kind}-{FORMAT}-{key.hexdigest()[:12]}"


class Row(NamedTuple):
    """A frame of a conversion; action and state are padded to the widest."""

    image: bytes
    action: NDArray[np.float32]
    state: NDArray[np.float32]
    task: str
    episode_index: int
    frame_index: int


def write_rows(mixture: Mixture, write: Callable[[int, Iterator[Row]], None]) -> Layout:
    """Has ``write`` keep the rows of each dataset of a mixture, whose number it is given."""
    looks = [next(read_episodes(dataset)) for dataset in mixture.datasets]
    layout = Layout(
        [[] for _ in looks],
        [one.action.shape[1] for one in looks],
        [one.state.shape[1] for one in looks],
    )

    def rows(number: int) -> Iterator[Row]:
        episodes = read_episodes(mixture.datasets[number], mixture.seed + number)
        for count, one in enumerate(episodes):
            action, state = _widened(one.action, layout.action), _widened(one.state, layout.state)
            yield from map(
                Row,
                one.frames,
                action,
                state,
                one.language,
                itertools.repeat(count),
                itertools.count(),
            )
            layout.lengths[number].append(len(one.frames))

    for number in range(len(looks)):
        write(number, rows(number))
    return layout


def _widened(values: NDArray[np.float32], widths: Sequence[int]) -> NDArray[np.float32]:
    return np.pad(values, ((0, 0), (0, max(widths) - values.shape[1])))
