"""Calls transforms written for TensorFlow: eager tensors in, eager tensors out.

Theory of operation. Such functions are written for trajectories as Octo's loaders have them, so
they get that form: per-step features at the top, and ``traj_metadata`` with ``episode_metadata``
repeated for every step, beside ``_len``. What comes back is NumPy again; of the metadata the first
value counts, and names that begin with "_" are left out.

``enter`` lets this process run them itself; others ask (``pipeline.graph.answers``).

Not here: what is asked (``samples.transforms.transform``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import tensorflow_process
from autoloader.formats.records import MalformedRecordError
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.transforms import transform
from autoloader.samples.transforms.rlds import METADATA, FunctionFailedError
from autoloader.spec import TransformSpec

_OF_TRAJECTORY = "traj_metadata"


def call_eagerly(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    """Call a user's TensorFlow function on an episode of NumPy arrays; its result as NumPy arrays.

    A ``samples.transforms.transform.Caller``.

    Args:
        function: the user's function, which takes a trajectory as TFDS and Octo have it.
        episode: arrays of the steps by feature, and under ``METADATA`` those that come once.
        steps: number of steps.
        kwargs: the spec's keyword arguments of the function.
    """
    with tf.device("/CPU:0"):
        once = episode.pop(METADATA)
        trajectory = _tensors(episode)
        repeated = tf.nest.map_structure(lambda one: tf.repeat(one[None], steps, 0), _tensors(once))
        trajectory[_OF_TRAJECTORY] = {METADATA: repeated}
        trajectory["_len"] = tf.repeat(steps, steps)
        result = function(trajectory, **kwargs)
        if not isinstance(result, Mapping):
            return result
        given = dict(result)
        kept = given.pop(_OF_TRAJECTORY, {})
        metadata = kept.get(METADATA, {}) if isinstance(kept, Mapping) else {}
        plain = _arrays({k: v for k, v in given.items() if not str(k).startswith("_")})
        return {**plain, METADATA: _arrays(tf.nest.map_structure(lambda one: one[0], metadata))}


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as tensors."""
    return {
        name: _tensors(value) if isinstance(value, Mapping) else _tensor(value)
        for name, value in values.items()
    }


def _tensor(value: Any) -> Any:
    """A tensor; a ragged one where every step has a list of its own."""
    listed = isinstance(value, np.ndarray) and value.ndim == 1 and len(value) > 0
    if not listed or not isinstance(value[0], np.ndarray):
        return tf.convert_to_tensor(value)
    dtype = tf.string if value[0].dtype == object else tf.as_dtype(value[0].dtype)
    flat = tf.convert_to_tensor(np.concatenate(value.tolist()), dtype)
    return tf.RaggedTensor.from_row_lengths(flat, [len(one) for one in value])


def _lists(value: Any) -> NDArray[Any]:
    """An array of each step's own list."""
    listed = np.empty(value.nrows(), dtype=object)
    for number, row in enumerate(value):
        listed[number] = row.numpy()
    return listed


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as arrays."""
    return {
        name: _arrays(value)
        if isinstance(value, Mapping)
        else _lists(value)
        if isinstance(value, tf.RaggedTensor)
        else value.numpy()
        if tf.is_tensor(value)
        else value
        for name, value in values.items()
    }


def answered(question: Any, spec: Any, arguments: tuple[Any, ...]) -> Any:
    """Answer of the process that runs TensorFlow to ``samples.transforms.transform``."""
    if question == "prepare":
        return None
    transform.CALLERS["tensorflow"] = call_eagerly
    try:
        return transform.answer(question, TransformSpec.model_validate(spec), *arguments)
    except (MalformedRecordError, FunctionFailedError) as error:
        return type(error)(str(error))


def enter() -> None:
    """Have this process call TensorFlow functions itself; the process that did so is ended."""
    if "tensorflow" not in transform.CALLERS:
        transform.CALLERS["tensorflow"] = call_eagerly
        tensorflow_process.process.close()
