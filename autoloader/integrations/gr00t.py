"""Batches as GR00T expects them: the steps of its datasets, or the padded inputs of its model.

``Gr00tLayout("mix.yaml")`` takes the spec that ``autoloader init --style gr00t`` writes. With
``inputs="steps"`` GR00T's own transforms (N1.5) or processor (N1.6, N1.7) do the rest. They
normalise, so ``layout.spec`` is the spec without ``normalize``, and batches must come of that one.

Not here: the file ``modality.json`` (``formats.lerobot.modality``), other layouts (``layouts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import UsageError, nearest
from autoloader.formats.lerobot.modality import Modality, Release
from autoloader.index.gr00t_files import as_stored, named_columns
from autoloader.integrations.layouts import filled
from autoloader.spec import PipelineSpec, SpecSource

EMBODIMENTS: Mapping[Release, Mapping[str, int]] = {
    "n1.5": {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24},
    "n1.6": {
        "robocasa_panda_omron": 13, "gr1": 20, "behavior_r1_pro": 24, "unitree_g1": 8,
        "libero_panda": 2, "oxe_google": 0, "oxe_widowx": 1, "oxe_droid": 16, "new_embodiment": 10,
    },
    "n1.7": {
        "simpler_env_google": 0, "simpler_env_widowx": 1, "libero_sim": 2, "new_embodiment": 10,
    },
}  # fmt: skip
"""Number of an embodiment's projector by its tag; the same tag has another number elsewhere."""
_SIZES: Mapping[Release, tuple[int, int, int]] = {
    "n1.5": (64, 0, 32), "n1.6": (29, 16, 29), "n1.7": (132, 40, 132),
}  # fmt: skip
"""Columns of state, least rows of actions, and columns of actions of the model's inputs."""


@dataclass
class Gr00tStep:
    """A step as the processor of N1.6 and N1.7 takes it; has the fields of their ``VLAStepData``.

    Attributes:
        images: camera → T frames [H, W, C] uint8.
        states, actions: name → rows [T, D] and [horizon, D] float32.
        text: the instruction.
        embodiment: the embodiment's tag.
        masks: always ``None``; N1.7 has it.
        is_demonstration: always false.
        metadata: always empty.
    """

    images: dict[str, list[NDArray[np.uint8]]]
    states: dict[str, NDArray[np.float32]]
    actions: dict[str, NDArray[np.float32]]
    text: str
    embodiment: Any
    masks: None = None
    is_demonstration: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Names:
    """GR00T's names of a dataset's parts of a batch.

    Attributes:
        cameras: camera of the batch → name.
        fields: "state" and "action" → name → columns of the field.
        text: full name of the annotation that is the text; "": it has none.
    """

    cameras: Mapping[str, str]
    fields: Mapping[str, Mapping[str, slice]]
    text: str


class Gr00tLayout:
    """A batch as GR00T's code takes it.

    ``inputs="steps"`` gives a list, one entry a sample:

    - N1.5: ``video.NAME`` [T, H, W, C] uint8, ``state.NAME`` and ``action.NAME`` [T, D] float64,
      ``annotation.NAME`` list of one text;
    - N1.6, N1.7: ``[{"type": "episode_step", "content": Gr00tStep}]``.

    ``inputs="padded"`` gives a dict of the batch:

    - N1.5: ``state`` [B, T, 64] and ``action`` [B, H, 32] float64, ``state_mask`` and
      ``action_mask`` bool; N1.6: 29 columns, float32, actions of at least 16 rows, ``action_mask``
      float32; N1.7: 132 columns and 40 rows. Masks tell columns and rows that were padded: rows
      behind the episode's end count as real, as in GR00T;
    - ``embodiment_id`` [B] int64; ``images`` and ``text`` as the batch has them.

    Args:
        spec: spec of datasets with a ``modality.json``, as ``init --style gr00t`` writes it.
        release: release of GR00T.
        inputs: "steps", or "padded".
        embodiment: tag of the embodiment, GR00T's own value or its text.
        step: class of a step of N1.6 and N1.7, such as ``VLAStepData``.

    Attributes:
        spec: the spec whose batches the layout takes.

    Raises:
        UsageError: a dataset's columns are not those that its ``modality.json`` names; or the
            release or the embodiment is not known.
    """

    def __init__(
        self,
        spec: SpecSource,
        *,
        release: Release = "n1.6",
        inputs: Literal["steps", "padded"] = "steps",
        embodiment: Any = "new_embodiment",
        step: Callable[..., Any] = Gr00tStep,
    ) -> None:
        if release not in EMBODIMENTS:
            raise UsageError(
                f"GR00T has no release {release!r}", remedy=nearest(str(release), EMBODIMENTS)
            )
        self.spec = PipelineSpec.of(spec)
        self._release, self._embodiment, self._step = release, embodiment, step
        self._names: dict[str, _Names] = {}
        if inputs == "steps":
            self.spec = as_stored(self.spec)
            self._names = {name: self._names_of(name) for name in self._dataset_names}
        tag, known = str(getattr(embodiment, "value", embodiment)), EMBODIMENTS[release]
        if inputs == "padded" and tag not in known:
            raise UsageError(
                f"GR00T {release} has no number for the embodiment tag {tag!r}",
                remedy=nearest(tag, known),
            )
        self._number = known.get(tag, -1)

    def __call__(self, batch: Mapping[str, Any], dataset_names: Sequence[str] = ()) -> Any:
        """The batch, rearranged.

        Args:
            batch: batch of a loader of ``spec``; torch tensors on the CPU, or NumPy arrays.
            dataset_names: names by dataset index, ``loader.dataset_names``; default: the spec's.

        Raises:
            UsageError: the batch does not tell its datasets, or is wider than the model's inputs.
        """
        if not self._names:
            return self._padded(batch)
        if len(self._names) > 1 and "dataset_index" not in batch:
            raise UsageError(
                "the batch mixes several datasets, but does not say which dataset each step is of",
                remedy="write metadata: full (or dataset_only) at the top level of the spec",
            )
        return list(self._steps(batch, dataset_names or self._dataset_names))

    @property
    def _dataset_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.spec.datasets)

    def _names_of(self, name: str) -> _Names:
        """GR00T's names of a dataset's parts."""
        declared = self.spec.dataset(name)
        modality = Modality.read(declared.path or "", self._release, dataset=name)
        keys = {one.original_key: key for key, one in modality.video.items()}
        cameras = {
            camera: keys.get(choice.paths[0], camera) for camera, choice in declared.images.items()
        }
        said = declared.language.paths if declared.language else ()
        of_text = [key for key, one in modality.annotation.items() if one.original_key in said]
        fields = {
            field: dict(named_columns(getattr(declared, field), modality, field, name))
            for field in ("state", "action")
        }
        return _Names(cameras, fields, f"annotation.{of_text[0]}" if of_text else "")

    def _steps(self, batch: Mapping[str, Any], names: Sequence[str]) -> Iterator[Any]:
        frames = {camera: np.asarray(one) for camera, one in batch["images"].items()}
        numbers = {field: np.asarray(batch[field]) for field in ("state", "action")}
        of = batch["dataset_index"].tolist() if "dataset_index" in batch else None
        for row, text in enumerate(batch["language"]):
            known = self._names[names[of[row] if of else 0]]
            images = {key: frames[camera][row] for camera, key in known.cameras.items()}
            rows = {
                field: {key: numbers[field][row][..., own] for key, own in columns.items()}
                for field, columns in known.fields.items()
            }
            if self._release == "n1.5":
                found = {f"video.{key}": one for key, one in images.items()}
                for field, of_field in rows.items():
                    for key, one in of_field.items():
                        found[f"{field}.{key}"] = one.astype(np.float64)
                yield found | ({known.text: [text]} if known.text else {})
                continue
            step = self._step(
                images={key: list(one) for key, one in images.items()}, states=rows["state"],
                actions=rows["action"], text=text, embodiment=self._embodiment,
            )  # fmt: skip
            yield [{"type": "episode_step", "content": step}]

    def _padded(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The model's inputs, without those of its vision-language model."""
        double = self._release == "n1.5"
        state_width, rows, action_width = _SIZES[self._release]
        found: dict[str, Any] = {}
        for name, width, least in (("state", state_width, 0), ("action", action_width, rows)):
            values, real = batch[name], batch[f"{name}_mask"]
            if double and name == "state":  # N1.5 cuts it
                values, real = values[..., :width], real[..., :width]
            if values.ndim > 3 or values.shape[-1] > width or 0 < least < values.shape[1]:
                raise UsageError(
                    f"{name} has shape {list(values.shape)}; the model of {self._release} takes "
                    f"{f'{least} rows of ' if least else ''}{width} columns",
                    remedy="choose fewer columns, or a shorter horizon, in the spec",
                )
            columns = real.any(1)[:, None] | filled(real.shape, 0, real)  # rows behind the end, too
            shape = (len(values), max(values.shape[1], least), width)
            for key, part in ((name, values), (f"{name}_mask", columns)):
                found[key] = filled(shape, 0, part)
                found[key][:, : values.shape[1], : values.shape[2]] = part
            found[name] = _typed(found[name], "double" if double else "float")
        if not double:
            del found["state_mask"]
            found["action_mask"] = _typed(found["action_mask"], "float")
        number = filled((len(batch["language"]),), self._number, batch["action"])
        return {
            **found,
            "embodiment_id": _typed(number, "long"),
            "images": batch["images"],
            "text": list(batch["language"]),
        }


def _typed(array: Any, name: Literal["double", "float", "long"]) -> Any:
    """An array or tensor in the type that torch calls ``name``."""
    dtypes = {"double": np.float64, "float": np.float32, "long": np.int64}
    own = getattr(array, name, None)
    return array.astype(dtypes[name]) if own is None else own()
