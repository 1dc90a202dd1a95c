"""Applies a user's transform to an episode that plain TFDS has read.

``autoloader verify`` compares the loader with the result. So this module is straightforward on
purpose, and uses nothing of the loader's own reading or checking. The function gets a number in
the place of each decoded picture; where it returns that number, the picture is put back.

Not here: reading the steps (``cli.tfds_reader``), the rules of ``keep``
(``cli.reference_values``).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.cli.tfds_reader import Step, value_at
from autoloader.errors import SourceError
from autoloader.spec import TransformSpec

_METADATA = "episode_metadata"
_VALID = "valid"
_PICTURES = 7 << 50


class TransformedEpisode:
    """An episode as a transform leaves it.

    Args:
        steps: the episode's, of ``TfdsReader.episode``.
        features: the dataset's own, by path.
        transform: which function.

    Attributes:
        steps: T' steps in the same form; none where the function drops the episode.
        valid: [T'] which of them may be t.

    Raises:
        SourceError: the function raises here, and did not in the loader.
    """

    def __init__(
        self, steps: Sequence[Step], features: Mapping[str, Feature], transform: TransformSpec
    ) -> None:
        self._pictures: list[Any] = []
        self.steps: list[Step] = []
        episode = self._episode(steps, features)
        try:
            result = _call(transform, episode, len(steps))
        except Exception as error:  # the user's code
            raise SourceError(
                f"{transform.call}, applied to what plain TFDS reads, raises "
                f"{type(error).__name__}: {error}",
                remedy="have it ask for nothing but the features of the dataset",
            ) from error
        result = {} if result is None else dict(result)
        once = result.pop(_METADATA, {})
        valid = result.pop(_VALID, None)
        leaves = dict(_leaves(result, ()))
        if leaves:
            for t in range(len(next(iter(leaves.values())))):
                step: dict[str, Any] = {_METADATA: once}
                for path, rows in leaves.items():
                    holder = step
                    for part in path[:-1]:
                        holder = holder.setdefault(part, {})
                    holder[path[-1]] = self._with_picture(rows[t])
                self.steps.append(step)
        self.valid = [True] * len(self.steps) if valid is None else [bool(one) for one in valid]

    def _episode(self, steps: Sequence[Step], features: Mapping[str, Feature]) -> dict[str, Any]:
        """What the function is given."""
        episode: dict[str, Any] = {_METADATA: {}}
        for path, feature in features.items():
            whole = feature.kind == "tensor" and feature.encoding is None
            if feature.kind not in ("image", "text") and not whole:
                continue
            try:
                values = [value_at(step, path) for step in steps]
            except (KeyError, TypeError):  # TFDS gives none, or nests otherwise
                continue
            if feature.per_step:
                rows = self._numbers_for(values) if feature.kind == "image" else _stacked(values)
                _put(episode, path, rows)
            elif values:
                _put(episode[_METADATA], path.removeprefix(f"{_METADATA}/"), values[0])
        return episode

    def _numbers_for(self, pictures: Sequence[Any]) -> NDArray[np.int64]:
        first = len(self._pictures)
        self._pictures += pictures
        return _PICTURES + np.arange(first, len(self._pictures))

    def _with_picture(self, value: Any) -> Any:
        """A step's value as TFDS would give it, its picture put back."""
        if isinstance(value, str):
            return value.encode()
        number = value - _PICTURES if isinstance(value, np.int64) else -1
        return self._pictures[number] if 0 <= number < len(self._pictures) else value


def _call(transform: TransformSpec, episode: dict[str, Any], steps: int) -> Any:
    module, _, name = transform.call.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    kwargs = json.loads(json.dumps(dict(transform.kwargs)))
    if transform.framework == "tensorflow":
        from autoloader.graph.user_functions import call_eagerly

        return call_eagerly(function, episode, steps, kwargs)
    return function(episode, **kwargs)


def _stacked(values: Sequence[Any]) -> NDArray[Any]:
    if not isinstance(values[0], bytes):
        return np.stack([np.asarray(value) for value in values])
    rows = np.empty(len(values), dtype=object)
    rows[:] = values
    return rows


def _put(holder: dict[str, Any], path: str, value: Any) -> None:
    """Nest a value by its path; where a leaf is in the way, the rest of the path is one name."""
    above, _, rest = path.partition("/")
    if rest and isinstance(holder.setdefault(above, {}), dict):
        _put(holder[above], rest, value)
    else:
        holder[path] = value


def _leaves(
    holder: Mapping[str, Any], path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], NDArray[Any]]]:
    found = []
    for name, value in holder.items():
        if isinstance(value, Mapping):
            found += _leaves(value, (*path, str(name)))
        elif value is not None:
            found.append(((*path, str(name)), np.asarray(value)))
    return found
