"""Writes LeRobot datasets of v2.1 and v3.0, whose frames show who they are.

Each frame is a grid of black and white squares: the bits of camera, episode and step. So a frame
tells which one it is, but where an encoder saves on it; ``decoded`` says what the video holds.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

HEIGHT, WIDTH, SQUARE = 64, 96, 16
BITS = (HEIGHT // SQUARE) * (WIDTH // SQUARE)
FPS = 10
OPTIONS = {
    "libx264": {"preset": "ultrafast", "bf": "2"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:bframes=2"},
    "libsvtav1": {"preset": "10", "crf": "10"},
}


def picture(camera: int, episode: int, step: int) -> NDArray[np.uint8]:
    """[64, 96, 3] uint8 the frame of a camera at a step of an episode."""
    number = camera | episode << 2 | step << 12
    bits = np.array([number >> k & 1 for k in range(BITS)], np.uint8)
    squares = bits.reshape(HEIGHT // SQUARE, WIDTH // SQUARE) * 200 + 28
    gray = np.kron(squares, np.ones((SQUARE, SQUARE), np.uint8))
    return np.repeat(gray[:, :, None], 3, axis=2).astype(np.uint8)


def shown(frame: NDArray[np.uint8]) -> tuple[int, int, int]:
    """(camera, episode, step) that a decoded frame shows."""
    middle = frame[SQUARE // 2 :: SQUARE, SQUARE // 2 :: SQUARE, 0].reshape(-1) > 128
    number = sum(int(bit) << k for k, bit in enumerate(middle))
    return number & 3, number >> 2 & 0x3FF, number >> 12


def write_video(
    path: Path,
    frames: Sequence[NDArray[np.uint8]],
    codec: str,
    gop: int,
    fps: float = FPS,
    hidden: int = 0,
    **more: str,
) -> None:
    """One file; ``more`` are options of the encoder. The first ``hidden`` frames lie before 0 s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {**OPTIONS.get(codec, {}), "g": str(gop), **more}
    scheduled = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=round(fps), options=options)
            stream.width, stream.height = WIDTH, HEIGHT
            stream.pix_fmt = "rgb24" if codec == "png" else "yuv420p"
            for number, shown in enumerate(frames, start=-hidden):
                frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
                frame.pts, frame.time_base = number, 1 / Fraction(round(fps))
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    finally:
        # For root SVT-AV1 makes the thread that opens it real-time, and so all that it starts.
        os.sched_setscheduler(0, *scheduled)


def decoded(path: Path) -> list[NDArray[np.uint8]]:
    """All frames of a video, decoded from the first to the last."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def stored(camera: int, episode: int, step: int) -> dict[str, Any]:
    """A picture as Parquet files hold it."""
    data = cv2.imencode(".png", picture(camera, episode, step))[1].tobytes()
    return {"bytes": data, "path": f"frame_{step:06d}.png"}


def columns(episode: int, length: int, first: int, fps: float = FPS) -> dict[str, Any]:
    """The rows of an episode; action and state tell episode and step."""
    steps = np.arange(length)
    action = np.stack([np.full(length, episode), steps, steps / 7], axis=1).astype(np.float32)
    state = np.stack([steps * 2, np.full(length, -episode)], axis=1).astype(np.float32)
    return {
        "action": list(action),
        "observation.state": list(state),
        "timestamp": (steps / fps).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.full(length, episode),
        "index": first + steps,
        "task_index": np.full(length, episode % 2),
    }


_MADE: dict[str, dict[str, bytes]] = {}
"""Files of every dataset that was written, by what it is."""


@dataclass
class LeRobotFiles:
    """A dataset to be written.

    Attributes:
        lengths: of its episodes.
        version: "v2.1" or "v3.0".
        codec, gop: of its videos.
        options: of the encoder, instead of the usual ones.
        fps: frames a second.
        cameras: feature → how many episodes each of its video files holds (v3.0).
        rows_a_file: episodes of a Parquet file (v3.0).
        info: what ``meta/info.json`` says beside or instead.
        pictures: cameras whose pictures lie in the Parquet files.
        written: how Parquet files are, as ``pyarrow.parquet.write_table`` takes it.
    """

    lengths: Sequence[int] = (12, 7, 20, 9)
    version: str = "v3.0"
    codec: str = "libx264"
    gop: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    fps: float = FPS
    cameras: Mapping[str, int] = field(default_factory=lambda: {"observation.images.top": 2})
    rows_a_file: int = 3
    info: Mapping[str, Any] = field(default_factory=dict)
    pictures: Sequence[str] = ()
    written: Mapping[str, Any] = field(default_factory=dict)

    tasks = ("pick up the cube", "put it down")

    def write(self, root: Path) -> Path:
        """Write all files below ``root``; what has been encoded once is copied."""
        made = _MADE.get(repr(self))
        if made is None:
            with TemporaryDirectory() as folder:
                self._encode(Path(folder))
                files = [one for one in Path(folder).rglob("*") if one.is_file()]
                made = {str(one.relative_to(folder)): one.read_bytes() for one in files}
            _MADE[repr(self)] = made
        for name, data in made.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return root

    def _encode(self, root: Path) -> None:
        (root / "meta").mkdir()
        several = self.version == "v3.0"
        firsts = np.concatenate([[0], np.cumsum(self.lengths)]).tolist()
        rows: list[dict[str, Any]] = []
        for episode, length in enumerate(self.lengths):
            file = episode // self.rows_a_file if several else episode
            row: dict[str, Any] = {
                "episode_index": episode,
                "tasks": [self.tasks[episode % 2]],
                "length": length,
            }
            if several:
                row |= {"data/chunk_index": 0, "data/file_index": file}
                row |= {"dataset_from_index": firsts[episode]}
                row |= {"dataset_to_index": firsts[episode + 1]}
            rows.append(row)
        for number, (camera, each) in enumerate(self.cameras.items()):
            self._write_camera(root, rows, number, camera, each if several else 1)
        for file in sorted({e // self.rows_a_file if several else e for e in range(len(rows))}):
            own = [e for e in range(len(rows)) if (e // self.rows_a_file if several else e) == file]
            tables = [pa.table(self._rows(e, firsts[e])) for e in own]
            place = f"file-{file:03d}" if several else f"episode_{file:06d}"
            whole, rows_file = pa.concat_tables(tables), root / f"data/chunk-000/{place}.parquet"
            _write_table(whole, rows_file, **self.written)
        self._write_meta(root, rows)

    def _rows(self, episode: int, first: int) -> dict[str, Any]:
        length = self.lengths[episode]
        return columns(episode, length, first, self.fps) | {
            camera: [stored(len(self.cameras) + number, episode, k) for k in range(length)]
            for number, camera in enumerate(self.pictures)
        }

    def _write_camera(
        self, root: Path, rows: list[dict[str, Any]], number: int, camera: str, each: int
    ) -> None:
        for first in range(0, len(rows), each):
            own = range(first, min(first + each, len(rows)))
            frames: list[NDArray[np.uint8]] = []
            for episode in own:
                if self.version == "v3.0":
                    rows[episode] |= {
                        f"videos/{camera}/chunk_index": 0,
                        f"videos/{camera}/file_index": first // each,
                        f"videos/{camera}/from_timestamp": len(frames) / self.fps,
                        f"videos/{camera}/to_timestamp": (len(frames) + self.lengths[episode])
                        / self.fps,
                    }
                frames += [picture(number, episode, k) for k in range(self.lengths[episode])]
            path = self.video(root, camera, first)
            write_video(path, frames, self.codec, self.gop, self.fps, **self.options)

    def video(self, root: Path, camera: str, episode: int) -> Path:
        """The file that holds an episode of a camera."""
        if self.version == "v3.0":
            return (
                root / f"videos/{camera}/chunk-000/file-{episode // self.cameras[camera]:03d}.mp4"
            )
        return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"

    def frames(self, root: Path, camera: str, episode: int) -> list[NDArray[np.uint8]]:
        """What a camera holds of an episode."""
        if camera in self.pictures:
            number = len(self.cameras) + list(self.pictures).index(camera)
            return [picture(number, episode, k) for k in range(self.lengths[episode])]
        each = self.cameras[camera] if self.version == "v3.0" else 1
        first = sum(self.lengths[episode - episode % each : episode])
        return decoded(self.video(root, camera, episode))[first : first + self.lengths[episode]]

    def _write_meta(self, root: Path, rows: list[dict[str, Any]]) -> None:
        several = self.version == "v3.0"
        data = "chunk-{chunk_index:03d}/file-{file_index:03d}"
        old = "chunk-{episode_chunk:03d}"
        info: dict[str, Any] = {
            "codebase_version": self.version,
            "fps": self.fps,
            "chunks_size": 1000,
            "total_episodes": len(rows),
            "splits": {"train": f"0:{len(rows)}"},
            "data_path": f"data/{data}.parquet"
            if several
            else f"data/{old}/episode_{{episode_index:06d}}.parquet",
            "video_path": f"videos/{{video_key}}/{data}.mp4"
            if several
            else f"videos/{old}/{{video_key}}/episode_{{episode_index:06d}}.mp4",
            "features": {
                **{
                    camera: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": None}
                    for camera in self.cameras
                },
                **{
                    camera: {"dtype": "image", "shape": [HEIGHT, WIDTH, 3], "names": None}
                    for camera in self.pictures
                },
                "action": {"dtype": "float32", "shape": [3]},
                "observation.state": {"dtype": "float32", "shape": [2]},
                "timestamp": {"dtype": "float32", "shape": [1]},
                **{
                    name: {"dtype": "int64", "shape": [1]}
                    for name in ("frame_index", "episode_index", "index", "task_index")
                },
            },
            **self.info,
        }
        (root / "meta/info.json").write_text(json.dumps(info))
        if several:
            _write_table(
                pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet"
            )
            tasks = {"task_index": [0, 1], "__index_level_0__": list(self.tasks)}
            _write_table(pa.table(tasks), root / "meta/tasks.parquet")
            return
        lines = [json.dumps(row) for row in rows]
        (root / "meta/episodes.jsonl").write_text("\n".join(lines) + "\n")
        told = [json.dumps({"task_index": k, "task": text}) for k, text in enumerate(self.tasks)]
        (root / "meta/tasks.jsonl").write_text("\n".join(told))


def _write_table(table: pa.Table, path: Path, **how: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **how)
