"""Rows whose content says where they lie on disk, and a reader of them that is not the library's.

Every frame is a bar code of dataset, shard, record and t, and so are the numbers and the words, so
that a row that is not the one its provenance names is recognised by every column. What a row must
hold is read from the files by ``bench.records`` and Pillow, and put together by ``cli.witness``:
neither shares code with the readers. All rows are held as arrays, so that a batch is compared as a
whole.

Not here: what disturbs the loader meanwhile (``isolation/loader_machine.py``).
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from plain_samples import Episode, Sample, samples_of
from rlds_files import PLAIN, Written, image, numbers, write_dataset
from streams import spec_of

from autoloader.cli.witness import splitmix64
from autoloader.spec import PipelineSpec
from bench.records import parse_example, read_records

SIZE, CELL = 16, 4
LOW, HIGH = 40, 215
CODE_BITS, BITS = 32, 3 * (SIZE // CELL) ** 2
TOLERANCE = 24
"""Grey levels that a JPEG may be off; two bar codes differ by more than 100 somewhere."""
SAMPLE = {
    "frame_offsets": [-2, 3],
    "state_offsets": [-1, 0],
    "action_start": 0,
    "action_horizon": 2,
    "action_reduce": "none",
    "action_relative_to_state": [],
    "edges": {"start": "repeat", "end": "zero"},
    "goal": "none",
    "per_episode": "all",
}
FEATURES = {
    **PLAIN,
    "observation/image": image(SIZE, SIZE),
    "observation/state": numbers(4),
    "action": numbers(3),
}
SHARDS = {
    "walnut": ("png", [[17, 40, 5], [33, 1, 60], [28, 12], [44, 9, 21]]),
    "beech": ("jpeg", [[30, 8], [25, 41], [3, 19, 22]]),
    "maple": ("png", [[50, 14], [2, 37]]),
    "birch": ("jpeg", [[11, 13], [16], [7, 6]]),
}
"""Dataset: its frames' format, and the steps of each episode by shard."""

Place = tuple[int, int, int, int]
"""Dataset, shard, record, t."""


def write_coded(folder: Path) -> list[Written]:
    """The datasets of ``SHARDS`` as files."""
    found = []
    for dataset, (name, (kind, shards)) in enumerate(SHARDS.items()):
        parts = [
            [_episode(kind, dataset, shard, record, steps) for record, steps in enumerate(part)]
            for shard, part in enumerate(shards)
        ]
        found.append(write_dataset(folder, parts, name=name, features=FEATURES))
    return found


def coded_spec(written: list[Written], **top: Any) -> PipelineSpec:
    """A spec over ``write_coded``'s datasets."""
    return spec_of(
        *written, sample=SAMPLE, cameras={"primary": {"size": [SIZE, SIZE]}}, seed=3, **top
    )


def _episode(kind: str, dataset: int, shard: int, record: int, steps: int) -> dict[str, Any]:
    places = [(dataset, shard, record, t) for t in range(steps)]
    return {
        "observation/image": [_encoded(kind, place) for place in places],
        "observation/state": [float(part) for place in places for part in reversed(place)],
        "action": [float(part) for d, s, r, t in places for part in (10 * d + s, t, r)],
        "language_instruction": ["/".join(map(str, place)).encode() for place in places],
    }


def _encoded(kind: str, place: Place) -> bytes:
    out = io.BytesIO()
    how = {"quality": 98, "subsampling": 0} if kind == "jpeg" else {}
    Image.fromarray(_bar_code(place)).save(out, kind, **how)
    return out.getvalue()


def _bar_code(place: Place) -> NDArray[np.uint8]:
    dataset, shard, record, t = place
    code = dataset << 28 | shard << 24 | record << 12 | t
    code |= (splitmix64(code) & (2 ** (BITS - CODE_BITS) - 1)) << CODE_BITS
    bits = np.array([code >> bit & 1 for bit in range(BITS)], bool)
    cells = np.where(bits, HIGH, LOW).astype(np.uint8).reshape(SIZE // CELL, SIZE // CELL, 3)
    return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)


class CodedRows:
    """What every row must hold, read from the files.

    Attributes:
        written: the datasets.
        sizes: rows of each dataset.
    """

    def __init__(self, written: list[Written]) -> None:
        self.written = written
        self.sizes: list[int] = []
        self._first = np.full((len(written), 16, 16), -1)
        self._steps = np.zeros_like(self._first)
        found: list[Sample] = []
        for dataset, one in enumerate(written):
            start = len(found)
            for shard, path in enumerate(one.files):
                for record, payload in enumerate(read_records(path)):
                    place = (dataset, shard, record)
                    samples = samples_of(_read(payload, place), SAMPLE, (0, shard, record), key=0)
                    self._first[place] = len(found)
                    self._steps[place] = len(samples)
                    found += [samples[t] for t in sorted(samples)]
            self.sizes.append(len(found) - start)
        blank = np.zeros((SIZE, SIZE, 3), np.uint8)
        frames = [
            np.stack([blank if frame is None else frame for frame in sample.frames["primary"]])
            for sample in found
        ]
        self._columns: dict[str, NDArray[Any]] = {
            "frame_mask": np.stack([np.array(sample.frame_mask) for sample in found]),
            "frame_offset": np.stack([np.array(sample.frame_offset) for sample in found]),
            "language": np.array([sample.language for sample in found], object),
            **{
                name: np.stack([getattr(sample, name) for sample in found])
                for name in ("action", "action_mask", "state", "state_mask")
            },
        }
        self._frames = np.stack(frames).astype(np.int16)

    def __len__(self) -> int:
        return len(self._frames)

    def _numbers(self, provenance: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each sample, −1 where there is no such sample."""
        dataset, _, shard, record, t = provenance.T
        inside = (
            (provenance >= 0).all(axis=1)
            & (dataset < len(self.sizes))
            & (shard < self._first.shape[1])
            & (record < self._first.shape[2])
        )
        place = tuple(np.where(inside, part, 0) for part in (dataset, shard, record))
        inside &= t < self._steps[place]
        return np.where(inside, self._first[place] + t, -1)

    def wrong(self, batch: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which rows of a batch do not hold the sample that their provenance names."""
        provenance = np.asarray(batch["provenance"])
        row = self._numbers(provenance)
        off = np.abs(np.asarray(batch["images"]["primary"]) - self._frames[row])
        wrong = (row < 0) | (off.reshape(len(row), -1).max(axis=1) > TOLERANCE)
        wrong |= np.asarray(batch["dataset_index"]) != provenance[:, 0]
        for name, wanted in self._columns.items():
            of = batch[name]["primary"] if name == "frame_mask" else batch[name]
            here = np.array(of, object) if name == "language" else np.asarray(of)
            wrong |= (here != wanted[row]).reshape(len(row), -1).any(axis=1)
        return wrong


def _read(payload: bytes, place: tuple[int, int, int]) -> Episode:
    """An episode, each of whose frames is held against the bar code of its place."""
    values = parse_example(payload)
    language = [word.decode() for word in values["steps/language_instruction"]]
    steps = len(language)
    frames = []
    for t, encoded in enumerate(values["steps/observation/image"]):
        frames.append(np.array(Image.open(io.BytesIO(encoded)).convert("RGB")))
        wanted = _bar_code((*place, t)).astype(int)
        assert np.abs(frames[-1] - wanted).max() <= TOLERANCE, (place, t)
    return Episode(
        frames={"primary": frames},
        action=np.asarray(values["steps/action"]).reshape(steps, -1),
        state=np.asarray(values["steps/observation/state"]).reshape(steps, -1),
        language=language,
    )
