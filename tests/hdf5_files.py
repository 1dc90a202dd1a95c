"""Writes HDF5 files by the calls that robot projects use, with pictures that say who they are."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 24, 32
Pictures = NDArray[np.uint8]


def pictures(
    camera: int, episode: int, steps: int, size: Sequence[int] = (HEIGHT, WIDTH)
) -> Pictures:
    """[T, H, W, 3] pictures of a camera in an episode: a slope, and noise in a part of it."""
    made = np.random.default_rng([camera, episode])
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    slope = np.stack([rows * 5, columns * 3, rows + columns], axis=-1) % 256
    found = np.repeat(slope[None], steps, axis=0) + np.arange(steps)[:, None, None, None] * 7
    found[:, : size[0] // 3] = made.integers(0, 256, found[:, : size[0] // 3].shape)
    return (found + 40 * camera + 11 * episode).astype(np.uint8)


def encoded(shown: Pictures, how: str = ".jpg") -> list[bytes]:
    """Each picture as OpenCV encodes it, which takes RGB for BGR."""
    return [cv2.imencode(how, one)[1].tobytes() for one in shown]


def padded(rows: Sequence[bytes]) -> Pictures:
    """[T, P] rows of bytes with zeros behind."""
    most = max(map(len, rows))
    return np.stack([np.frombuffer(one.ljust(most, b"\0"), np.uint8) for one in rows])


def _rows(group: h5py.Group, name: str, shown: Pictures, **how: Any) -> None:
    group.create_dataset(name, data=padded(encoded(shown)), **how)


def _heaps(group: h5py.Group, name: str, shown: Pictures, **how: Any) -> None:
    rows = encoded(shown)
    array = group.create_dataset(name, (len(rows),), h5py.vlen_dtype(np.uint8), **how)
    for t, one in enumerate(rows):
        array[t] = np.frombuffer(one, np.uint8)


def _raw(**how: Any) -> Callable[[h5py.Group, str, Pictures], None]:
    def write(group: h5py.Group, name: str, shown: Pictures) -> None:
        group.create_dataset(name, data=shown, **how)

    return write


LAYOUTS: Mapping[str, Callable[[h5py.Group, str, Pictures], Any]] = {
    "contiguous": _raw(),
    "frame_chunks": _raw(chunks=(1, HEIGHT, WIDTH, 3)),
    "rows_of_frames": _raw(chunks=(4, HEIGHT, WIDTH, 3)),
    "plain_chunks": _raw(chunks=(4, 10, 12, 2)),
    "gzip": _raw(compression="gzip", chunks=(5, 10, 12, 1)),
    "gzip_frames": _raw(compression="gzip", chunks=(1, HEIGHT, WIDTH, 3)),
    "lzf": _raw(compression="lzf", chunks=(5, 12, 16, 2)),
    "shuffle": _raw(compression="gzip", shuffle=True, chunks=(3, 24, 20, 3)),
    "fletcher32": _raw(compression="gzip", fletcher32=True, chunks=(4, 7, 32, 3)),
    "checked": _raw(fletcher32=True, chunks=(4, 24, 32, 3)),
    "jpeg_rows": _rows,
    "jpeg_chunks": lambda group, name, shown: _rows(
        group, name, shown, chunks=(1, padded(encoded(shown)).shape[1])
    ),
    "jpeg_gzip": lambda group, name, shown: _rows(
        group, name, shown, compression="gzip", shuffle=True, chunks=(3, 200)
    ),
    "jpeg_strings": lambda group, name, shown: group.create_dataset(
        name, data=encoded(shown), dtype=f"S{max(map(len, encoded(shown)))}"
    ),
    "heaps": _heaps,
    "heap_chunks": lambda group, name, shown: _heaps(group, name, shown, chunks=(1,)),
}
"""Every way in which pictures lie in a file → what writes it."""


def write_aloha(
    path: Path, episode: int, steps: int, cameras: Mapping[str, str], **more: Any
) -> None:
    """An episode as ALOHA has it, a file of its own; camera → layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", **more) as file:
        file.create_dataset("action", data=numbers(episode, steps, 14))
        seen = file.create_group("observations")
        seen.create_dataset("qpos", data=numbers(episode, steps, 14) + 0.5)
        images = seen.create_group("images")
        for number, (camera, layout) in enumerate(cameras.items()):
            LAYOUTS[layout](images, camera, pictures(number, episode, steps))


def numbers(episode: int, steps: int, width: int) -> NDArray[np.float64]:
    """[T, width] numbers that say their episode, step and column."""
    return episode * 100 + np.arange(steps)[:, None] + np.arange(width) / 100


def write_robomimic(
    path: Path,
    lengths: Mapping[str, int],
    layout: str = "contiguous",
    masks: Mapping[str, Sequence[str]] | None = None,
    words: str = "",
    first: int = 0,
) -> None:
    """Episodes as robomimic and LIBERO have them: demo → steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths.values())
        if words:
            data.attrs["problem_info"] = json.dumps({"language_instruction": words})
        for number, (name, steps) in enumerate(lengths.items(), start=first):
            demo = data.create_group(name)
            demo.attrs["num_samples"] = steps
            demo.attrs["model_file"] = "<mujoco/>" * 100
            demo.create_dataset("actions", data=numbers(number, steps, 7))
            demo.create_dataset("rewards", data=np.zeros(steps))
            seen = demo.create_group("obs")
            seen.create_dataset("robot0_eef_pos", data=numbers(number, steps, 3))
            seen.create_dataset("robot0_eef_quat", data=numbers(number, steps, 4))
            seen.create_dataset("robot0_gripper_qpos", data=numbers(number, steps, 2))
            for k, camera in enumerate(("agentview_image", "robot0_eye_in_hand_image")):
                LAYOUTS[layout](seen, camera, pictures(k, number, steps))
        for name, of in (masks or {}).items():
            file.create_dataset(f"mask/{name}", data=np.array(list(of), dtype="S8"))


def write_robotwin(
    path: Path, episode: int, steps: int, words: Sequence[str] = ("lift it",)
) -> None:
    """An episode as RoboTwin's version 1.0 has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        text = h5py.string_dtype(encoding="utf-8")
        file.create_dataset("instructions", data=json.dumps(list(words)), dtype=text)
        file.create_dataset("additional_info/frequency", data=np.asarray(15, np.int32))
        for part in ("state", "action"):
            for arm in ("left_arm", "right_arm"):
                wide = numbers(episode, steps, 6).astype(np.float32)
                file.create_dataset(f"{part}/{arm}_joint_states", data=wide)
                file.create_dataset(f"{part}/{arm.replace('arm', 'ee')}_joint_states",
                                    data=wide[:, :1])  # fmt: skip
        for number, camera in enumerate(("cam_head", "cam_left_wrist")):
            LAYOUTS["jpeg_strings"](file.require_group(f"vision/{camera}"), "colors",
                                    pictures(number, episode, steps))  # fmt: skip
            file[f"vision/{camera}"].create_dataset("shape", data=[HEIGHT, WIDTH, 3])


def write_robotwin_legacy(path: Path, episode: int, steps: int) -> None:
    """An episode as RoboTwin had it before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("joint_action/vector", data=numbers(episode, steps, 14))
        camera = file.create_group("observation/head_camera")
        LAYOUTS["jpeg_strings"](camera, "rgb", pictures(0, episode, steps))
