"""The samples of an episode that a test has put together by hand, as the witness makes them.

``cli.witness`` shares nothing with the readers that are held against it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoloader.cli import witness
from autoloader.spec import DatasetSpec, SampleSpec


@dataclass
class Episode:
    """One episode as plain TFDS gives it: T steps.

    Attributes:
        frames: camera → T encoded frames.
        action, state: [T, w] float32.
        language: T texts.
        texts: feature → T texts, of features that rules look at.
        metadata: of the whole episode.
    """

    frames: Mapping[str, Sequence[Any]]
    action: np.ndarray
    state: np.ndarray
    language: Sequence[str]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def steps(self) -> list[dict[str, Any]]:
        """As the witness takes them."""
        return [
            {
                **{f"frames {camera}": frames[t] for camera, frames in self.frames.items()},
                **{name: texts[t] for name, texts in self.texts.items()},
                **self.metadata,
                "its action": self.action[t],
                "its state": self.state[t],
                "its language": self.language[t],
            }
            for t in range(len(self.action))
        ]


@dataclass
class Sample:
    """What the sample at t holds; ``None`` stands for a frame of zeros."""

    frames: dict[str, list[Any]]
    frame_mask: list[bool]
    frame_offset: list[int]
    action: np.ndarray
    action_mask: np.ndarray
    state: np.ndarray
    state_mask: np.ndarray
    language: str


def samples_of(
    one: Episode,
    sample: Mapping[str, Any],
    place: tuple[int, int, int],
    *,
    key: int,
    valid: Sequence[bool] | None = None,
    **own: Any,
) -> dict[int, Sample]:
    """Samples by t, in the order in which an episode gives them.

    Args:
        one: what lies on disk.
        sample: the spec's ``sample``.
        place: pass, shard and record.
        key: of the dataset.
        valid: which steps before the stride may be t.
        own: more that the spec says of the dataset.
    """
    fields = {"action": "its action", "state": "its state", "language": "its language"}
    declared = DatasetSpec.model_validate(
        {"name": "one", "path": "/", "images": {"primary": "no picture"}, **fields, **own}
    )
    made = witness.Episode(
        one.steps(), declared, SampleSpec.model_validate(sample), valid=valid, key=key
    )
    return {t: _sample(one, made.at(t, *place)) for t in made.drawn(*place)}


def _sample(one: Episode, made: witness.Sample) -> Sample:
    frames, arrays = made.frames(), dict[str, np.ndarray]()
    for name in ("action", "state"):
        found = made.rows(name)
        assert found is not None
        values, inside, _ = found
        chunks = len(made.episode.sample.frame_offsets)
        shape = values.shape
        if name == "action" and made.episode.sample.action_per == "step":
            shape = (chunks, len(values) // chunks, shape[1])
        mask = np.broadcast_to(inside[:, None], values.shape)
        arrays |= {name: values.reshape(shape), f"{name}_mask": mask.reshape(shape)}
    ((language,),) = made.episode.said(made.episode.steps[made.t])
    return Sample(
        frames={
            camera: [None if step is None else step[f"frames {camera}"] for step, _, _ in frames]
            for camera in one.frames
        },
        frame_mask=[inside for _, _, inside in frames],
        frame_offset=[offset for _, offset, _ in frames],
        language=language,
        **arrays,
    )
