"""Transforms of ``entry_pairs``."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(episode: dict[str, Any], **_: Any) -> dict[str, Any]:
    return episode


def halved(episode: dict[str, Any]) -> dict[str, Any]:
    return _steps(episode, slice(0, None, 2))


def strided(episode: dict[str, Any], *, every: int = 1) -> dict[str, Any]:
    return _steps(episode, slice(None, None, every))


def scaled(episode: dict[str, Any], *, by: int = 2) -> dict[str, Any]:
    episode["action"] = episode["action"] * np.float32(by)
    return episode


def _steps(episode: dict[str, Any], take: slice) -> dict[str, Any]:
    return {
        name: value
        if name == "episode_metadata"
        else _steps(value, take)
        if isinstance(value, dict)
        else value[take]
        for name, value in episode.items()
    }
