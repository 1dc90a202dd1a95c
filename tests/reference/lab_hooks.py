"""Transforms that the tests name by ``lab_hooks:NAME``."""

from typing import Any

import numpy as np


def _steps(episode: dict[str, Any], take: slice) -> dict[str, Any]:
    return {
        name: value
        if name == "episode_metadata"
        else _steps(value, take)
        if isinstance(value, dict)
        else value[take]
        for name, value in episode.items()
    }


def same(episode: dict[str, Any]) -> dict[str, Any]:
    return episode


def drop_first(episode: dict[str, Any]) -> dict[str, Any]:
    return _steps(episode, slice(1, None))


def strided(episode: dict[str, Any], *, every: int) -> dict[str, Any]:
    return _steps(episode, slice(None, None, every))


def renamed(episode: dict[str, Any]) -> dict[str, Any]:
    observation = episode["observation"]
    observation["head"] = observation.pop("image")
    return episode


def rebuilt(episode: dict[str, Any]) -> dict[str, Any]:
    action = episode["action"]
    gripper = 1 - np.clip(action[:, -1:], 0, 1)
    episode["action"] = np.concatenate([action[:, :1] * 2, gripper, action[:, 1:]], axis=1)
    return episode


def only_even(episode: dict[str, Any]) -> dict[str, Any] | None:
    """Drops episodes of an odd number."""
    return None if int(episode["observation"]["state"][0, 0]) % 2 else episode


def barred(episode: dict[str, Any]) -> dict[str, Any]:
    """No t where the step is divisible by three, and none in episode 3."""
    state = episode["observation"]["state"]
    episode["valid"] = (state[:, 1] % 3 != 0) & (state[:, 0] != 3)
    return episode


def fails_late(episode: dict[str, Any]) -> dict[str, Any]:
    if episode["observation"]["state"][0, 0] == 2:
        raise KeyError("no depth here")
    return episode


def fails(episode: dict[str, Any]) -> dict[str, Any]:
    return episode["observation"]["depth"]  # type: ignore[no-any-return]


def ragged(episode: dict[str, Any]) -> dict[str, Any]:
    episode["action"] = episode["action"][1:]
    return episode


def mixed(episode: dict[str, Any]) -> dict[str, Any]:
    """All in one: steps reversed, texts from metadata, one camera of two, integers for text."""
    episode = _steps(episode, slice(None, None, -1))
    name = episode["episode_metadata"]["file_path"].decode()
    steps = len(episode["action"])
    episode["task"] = np.array([f"{name} é {t}" for t in range(steps)])
    observation = episode["observation"]
    odd = np.arange(steps) % 2 == 1
    observation["head"] = np.where(odd, observation["image"], observation["wrist"])
    return episode


def relabelled(episode: dict[str, Any]) -> dict[str, Any] | None:
    """Other steps, words and metadata than the files have, and some of the steps barred."""
    number = int(episode["observation"]["state"][0, 0])
    if number == 4:
        return None
    episode = _steps(episode, slice(1, None))
    steps = np.arange(len(episode["action"]))
    words = [b" " if (number + t) % 4 == 0 else b"pick %d" % (t // 2) for t in steps]
    episode["said"] = np.array(words, dtype=object)
    metadata = {"name": b"/new/%d" % number, "number": np.int64(10 * number)}
    return {**episode, "episode_metadata": metadata, "valid": steps % 5 != 1}


not_a_function = 3
calls: list[int] = []


def counted(episode: dict[str, Any]) -> dict[str, Any]:
    calls.append(int(episode["observation"]["state"][0, 0]))
    return episode


def returns_list(episode: dict[str, Any]) -> list[Any]:
    return list(episode)


def bad_valid(episode: dict[str, Any]) -> dict[str, Any]:
    return {**episode, "valid": episode["action"][:, 0]}
