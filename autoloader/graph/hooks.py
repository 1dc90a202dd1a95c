"""Calls transforms written for TensorFlow: eager tensors in, eager tensors out.

Theory of operation. Such functions are written for trajectories as Octo's loaders have them, so
they get that form: per-step features at the top, and ``traj_metadata`` with ``episode_metadata``
repeated for every step, beside ``_len``. What comes back is NumPy again; of the metadata the first
value counts, and names that begin with "_" are left out.

``enter`` lets this process run them itself. As ``python -m autoloader.graph.hooks`` it
is the process that others ask (``sampling.hook``): pickled questions on stdin, answers on stdout,
and the descriptor that functions may print to as its argument.

Not here: what is asked (``sampling.transform``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from autoloader.catalog.tfrecord import MalformedRecordError
from autoloader.graph.tensorflow import tf
from autoloader.sampling import hook, transform
from autoloader.sampling.hook import HookFailedError
from autoloader.sampling.rlds import METADATA, HookResultError
from autoloader.spec import TransformSpec

_OF_TRAJECTORY = "traj_metadata"


def call_eagerly(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    """See ``sampling.hook.Caller``."""
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
    return {
        name: _tensors(value) if isinstance(value, Mapping) else tf.convert_to_tensor(value)
        for name, value in values.items()
    }


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _arrays(value)
        if isinstance(value, Mapping)
        else value.numpy()
        if tf.is_tensor(value)
        else value
        for name, value in values.items()
    }


def serve() -> None:
    """Answer questions until the one who asks is gone."""
    os.dup2(int(sys.argv[1]), 2)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    questions = sys.stdin.buffer
    try:
        hook.extend_import_path(hook.receive(questions))
        while True:
            hook.send(answers, _answered(*hook.receive(questions)))
    except (EOFError, BrokenPipeError):
        return


def _answered(question: str, spec: Any, arguments: tuple[Any, ...]) -> Any:
    if question == "prepare":
        return None
    asked = transform.describe_here if question == "describe" else transform.apply_here
    try:
        return asked(TransformSpec.model_validate(spec), call_eagerly, *arguments)
    except (MalformedRecordError, HookFailedError, HookResultError) as error:
        return type(error)(str(error))


def enter() -> None:
    """From now on this process calls such functions itself; the other one is not needed."""
    if "tensorflow" not in hook.CALLERS:
        hook.CALLERS["tensorflow"] = call_eagerly
        hook.remote.close()


if __name__ == "__main__":
    serve()
