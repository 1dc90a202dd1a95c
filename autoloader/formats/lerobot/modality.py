"""``meta/modality.json``: the columns, cameras and texts of a LeRobot dataset as GR00T names them.

::

    {"state":  {"left_arm": {"start": 0, "end": 7}},
     "action": {"left_arm": {"start": 0, "end": 7, "absolute": true}},
     "video":  {"ego_view": {"original_key": "observation.images.cam_high"}},
     "annotation": {"human.task_description": {"original_key": "task_index"}}}

``start`` and ``end`` count columns of ``original_key``: without it those of ``observation.state``
and ``action``. The releases of GR00T differ in a camera without ``original_key``: N1 and N1.5 take
the feature of the camera's own name, later ones ``observation.images.NAME``.

Not here: the spec that ``init --style gr00t`` makes of it (``process.gr00t``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.dataset import broken, read_json
from autoloader.spec.block import wrong
from autoloader.spec.reading import complaint

MODALITY_FILE = "meta/modality.json"
Release = Literal["n1.5", "n1.6", "n1.7"]
"""Releases of GR00T whose rules are known; those of N1 are N1.5's."""
_TASK_NUMBERS, _TASK = "task_index", "task"
_POSE = re.compile(r"eef|end_effector|pose|quat|rot")


class Columns(BaseModel):
    """A slice of a numeric feature under GR00T's name.

    Attributes:
        start, end: first column, and the one behind the last.
        original_key: feature that the columns are of; ``None``: the default of the field.
        rotation_type: form of a rotation; ``None``: the columns are none.
        absolute: whether a row outside of the episode repeats the nearest one; else it is zero.
        dtype: type of the numbers; one that is no float is a switch.
    """

    start: int = Field(ge=0)
    end: int
    original_key: str | None = None
    rotation_type: (
        Literal[
            "axis_angle", "quaternion", "rotation_6d", "matrix",
            "euler_angles_rpy", "euler_angles_ryp", "euler_angles_pry",
            "euler_angles_pyr", "euler_angles_yrp", "euler_angles_ypr",
        ]
        | None
    ) = None  # fmt: skip
    absolute: bool = True
    dtype: str = "float64"

    @model_validator(mode="after")
    def _takes_columns(self) -> Columns:
        if self.end <= self.start:
            raise wrong(
                f"start {self.start} and end {self.end} take no column",
                "write an end above the start",
            )
        return self

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.end - self.start


class _Named(BaseModel):
    """A camera or an annotation."""

    original_key: str | None = None


class Modality(BaseModel):
    """A ``modality.json`` with every default filled in.

    Attributes:
        state, action: GR00T's name → columns, in the order of the file.
        video: GR00T's name of a camera → feature.
        annotation: name of a text, without ``annotation.`` → feature that holds it, or its number.
    """

    state: Mapping[str, Columns]
    action: Mapping[str, Columns]
    video: Mapping[str, _Named]
    annotation: Mapping[str, _Named] = {}

    def columns(self, field: str) -> Mapping[str, Columns]:
        """``state`` or ``action``."""
        return self.action if field == "action" else self.state

    @property
    def poses(self) -> dict[str, Columns]:
        """Actions that are poses or rotations, by their name or ``rotation_type``."""
        turned = {key for of in (self.action, self.state) for key in of if of[key].rotation_type}
        return {key: one for key, one in self.action.items() if _POSE.search(key) or key in turned}

    @classmethod
    def read(cls, root: str | Path, release: Release, *, dataset: str) -> Modality:
        """Read the file of the dataset in ``root`` by the rules of a release.

        Raises:
            SourceError: the file is missing, or is none.
        """
        path = f"{files.normal(root)}/{MODALITY_FILE}"
        if not os.path.exists(path):
            raise SourceError(
                f"dataset {dataset}: {files.normal(root)} has no {MODALITY_FILE}, in which GR00T "
                "names columns and cameras",
                remedy="write one with state, action and video, as GR00T's data preparation guide "
                "says",
            )
        raw = read_json(path, dataset=dataset)
        try:
            found = cls.model_validate(raw)
        except ValidationError as error:
            what, remedy, _ = complaint(error, raw)
            raise broken(path, what, dataset=dataset, remedy=remedy) from error
        prefix = "" if release == "n1.5" else "observation.images."
        for field, default in (("state", "observation.state"), ("action", "action")):
            for one in found.columns(field).values():
                one.original_key = one.original_key or default
        for key, camera in found.video.items():
            camera.original_key = camera.original_key or prefix + key
        for key, words in found.annotation.items():
            words.original_key = _text(key, words.original_key)
        return found


def _text(key: str, original: str | None) -> str:
    """Feature of an annotation's texts; the numbers of tasks are the feature ``task`` here."""
    return _TASK if original == _TASK_NUMBERS else original or f"annotation.{key}"
