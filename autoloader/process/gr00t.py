"""Fields of a dataset by its ``modality.json``, for ``autoloader init --style gr00t``.

The releases of GR00T differ::

                      N1.5                                 N1.6, N1.7
    frame             the one nearest to the row's time    the one of the row's number
    behind the end    the last row again, or zeros         no sample: whole horizons alone
    rotations         of the state, as rotation_6d         as they are
    actions of arms   as they are                          relative to the state at t
    normalised        switches to 0 and 1, rotations not   everything

Not here: reading the file (``formats.lerobot.modality``), the spec's text (``draft``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from autoloader.errors import SourceError, UnsupportedError
from autoloader.formats import DatasetFormat
from autoloader.formats.lerobot import LeRobotDirectory
from autoloader.formats.lerobot.modality import MODALITY_FILE, Columns, Modality, Release
from autoloader.samples.transforms.fields import is_code

HORIZON = 16
"""Rows of actions in most of GR00T's configurations."""
SHARD_SAMPLES = 1024
"""Samples of a shard since N1.6, by which datasets are weighed there."""
_ARM = re.compile(r"arm")
_END_EFFECTOR = re.compile(r"eef|end_effector|ee_pose|tcp")
_QUATERNION = {"quaternion": "wxyz"}


def fields_of(
    directory: DatasetFormat, release: Release
) -> tuple[dict[str, Any], list[str], float]:
    """The fields of a LeRobot dataset with a ``modality.json``, by the rules of a release.

    Returns:
        Fields of the dataset as a spec writes them; remarks for people; its share in a mixture.

    Raises:
        SourceError: there is no such file, or it names a feature that the dataset does not have.
        UnsupportedError: an action is a pose of an end effector that may be meant relative.
    """
    modality = Modality.read(directory.path, release, dataset=directory.dataset)
    _check(modality, directory)
    language, notes = _language(modality, directory)
    if release != "n1.5":
        _refuse_poses(modality, directory, release)
    # Joints of arms that action and state have alike, by their names.
    arms = [key for key in _alike(modality) if _ARM.search(key) and key not in modality.poses]
    relative = [] if release == "n1.5" else arms
    fields = {name: _Field(modality, name, relative, release) for name in ("action", "state")}
    if any(fields["action"].columns[key] != fields["state"].columns[key] for key in relative):
        for one in fields.values():  # differences are between columns of one number
            one.begin_with(relative)
    values: dict[str, Any] = {
        "images": {camera_name(key): one.original_key for key, one in modality.video.items()},
        **{name: one.terms for name, one in fields.items()},
    }
    if language is not None:
        values["language"] = language
    values["timestamps"] = "nearest" if release == "n1.5" else "ignore"
    action = fields["action"]
    outside = action.columns_of(key for key, one in modality.action.items() if not one.absolute)
    if relative:
        values["sample"] = {"action_relative_to_state": action.columns_of(relative)}
        notes.append(f"relative to the state, by their names: {', '.join(relative)}")
    elif outside and release == "n1.5":
        values["sample"] = {"action_zero_outside": outside}
    own = {name: one.normalize for name, one in fields.items() if one.normalize is not None}
    if own:
        values["normalize"] = own
    if release == "n1.5":
        return values, notes, 1.0
    lengths = [steps for of_file in directory.steps.values() for steps in of_file]
    samples = sum(max(0, steps - HORIZON + 1) for steps in lengths)
    return values, notes, float(max(1, math.ceil(samples / SHARD_SAMPLES)))


def camera_name(key: str) -> str:
    """Name of a camera in the spec, of GR00T's name."""
    return re.sub(r"\W", "_", key)


class _Field:
    """``action`` or ``state`` in the making.

    Attributes:
        keys: GR00T's names in the order of the spec's terms.
        columns: name → its columns in the field.
    """

    def __init__(
        self, modality: Modality, name: str, relative: Sequence[str], release: Release
    ) -> None:
        self._of = modality.columns(name)
        self._action, self._n15 = name == "action", release == "n1.5"
        self._relative = relative if self._action else ()
        self.begin_with(())

    def begin_with(self, keys: Sequence[str]) -> None:
        """Put these names first."""
        self.keys = [*keys, *(key for key in self._of if key not in keys)]
        self.columns: dict[str, range] = {}
        first = 0
        for key in self.keys:
            width = 6 if self._turned(self._of[key]) else self._of[key].width
            self.columns[key] = range(first, first := first + width)

    def _turned(self, one: Columns) -> bool:
        """True if a rotation becomes another form."""
        return self._n15 and not self._action and one.rotation_type not in (None, "rotation_6d")

    def columns_of(self, keys: Iterator[str] | Sequence[str]) -> list[int]:
        """Columns of some names, ascending."""
        return sorted(column for key in keys for column in self.columns[key])

    @property
    def terms(self) -> list[Any]:
        """The field as a spec writes it."""
        found: list[Any] = []
        for one in (self._of[key] for key in self.keys):
            path = f"{one.original_key}[{one.start}:{one.end}]"
            form = _QUATERNION.get(one.rotation_type or "", one.rotation_type)
            turned = {"path": path, "ops": [{"rotation6d": form}]}
            found.append(turned if self._turned(one) else path)
        return found

    @property
    def normalize(self) -> dict[str, Any] | None:
        """The dataset's own ``normalize`` of the field; ``None``: all columns as the mixture's."""
        if self._relative:
            how = {"method": "min_max", "clip": True, "by_row": True}
            return {"dims": "[:]", "columns": [{"dims": self.columns_of(self._relative), **how}]}
        if not self._n15:
            return None
        turns = self.columns_of([key for key, one in self._of.items() if one.rotation_type])
        switches = [key for key, one in self._of.items() if "float" not in one.dtype]
        if not turns and not switches:
            return None
        every = [column for columns in self.columns.values() for column in columns]
        kept = [column for column in every if column not in turns]
        binary = {"dims": self.columns_of(switches), "method": "binary"}
        return {"dims": kept or every, "columns": [binary]} if switches else {"dims": kept}


def _alike(modality: Modality) -> Iterator[str]:
    """Names that action and state have in the same width."""
    for key, one in modality.action.items():
        other = modality.state.get(key)
        if other is not None and other.width == one.width:
            yield key


def _refuse_poses(modality: Modality, directory: DatasetFormat, release: Release) -> None:
    """Refuse poses of end effectors that GR00T may take relative to the state.

    GR00T has no statistics of their differences. The file says that a pose stays as it is by
    ``absolute``: true, or by false where the numbers are differences already.
    """
    for key in _alike(modality):
        named = _END_EFFECTOR.search(key) or (_ARM.search(key) and key in modality.poses)
        if named and "absolute" not in modality.action[key].model_fields_set:
            raise UnsupportedError(
                f"dataset {directory.dataset}: action.{key} of {MODALITY_FILE} is a pose of an end "
                f"effector, which GR00T {release.upper()} may take relative to the state: "
                "autoloader cannot",
                remedy=f'to train on it as it is stored, write "absolute": true for action.{key} '
                f"in {MODALITY_FILE}",
                path="",
            )


def _check(modality: Modality, directory: DatasetFormat) -> None:
    """Refuse names of features that the dataset does not have."""
    named = {f"video.{key}": one.original_key or "" for key, one in modality.video.items()}
    for field in ("state", "action"):
        of = modality.columns(field).items()
        named |= {f"{field}.{key}": one.original_key or "" for key, one in of}
    for key, path in named.items():
        if path not in directory.features:
            raise SourceError(
                f"dataset {directory.dataset}: {key} of {MODALITY_FILE} is {path!r}, which is not "
                f"a feature of {directory.path}",
                remedy=f"set its original_key to one of: {', '.join(sorted(directory.features))}",
            )


def _language(modality: Modality, directory: DatasetFormat) -> tuple[Any, list[str]]:
    """(the instruction as a spec writes it or ``None``, remarks on other annotations)."""
    usable: dict[str, Any] = {}
    left = []
    for key, one in modality.annotation.items():
        path = one.original_key or ""
        feature = directory.features.get(path)
        if feature is None:
            left.append(f"annotation.{key} ({path} is no feature)")
        elif feature.kind == "text":
            usable[key] = path
        elif is_code(feature):
            assert isinstance(directory, LeRobotDirectory)
            names = {number: text.decode() for number, text in directory.tasks.items()}
            usable[key] = {"path": path, "names": names}
        else:
            left.append(f"annotation.{key} ({feature.dtype}, no number of a task)")
    order = sorted(usable, key=lambda key: ("description" not in key, key))
    notes = [f"left alone: {', '.join(left)}"] if left else []
    if len(order) > 1:
        others = ", ".join(f"annotation.{key}" for key in order[1:])
        notes.append(f"the text is annotation.{order[0]}; others: {others}")
    return (usable[order[0]] if order else None), notes
