"""Windows of video frames: processor time a sample beside decoding alone, and decodes a frame.

    python -m bench.video [--rows av1-2 h264-20 h264-250] [--sizes full 224] [--rounds 6]
                          [--folder DIR] [--torchcodec PYTHON]

Writes LeRobot datasets of 640x480 (AV1 with a keyframe every 2 frames; H.264 every 20 and 250). The
loader and decoding alone take turns in one process, over the same samples. *Decoding alone* has all
packets in memory and begins each sample at its keyframes: decode, RGB, resize, by as many threads.
*skipping* is the same without frames that nobody wants and no frame refers to. torchcodec, in a
Python that has it, gets all frames of a batch from one file in one call of ``get_frames_at``; it
does not resize. Time is that of processors, of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.reformatter import VideoReformatter

from autoloader import AutoLoader, PipelineSpec
from bench.processes import tree_cpu_s

HEIGHT, WIDTH, FPS, EPISODES, STEPS = 480, 640, 30, 16, 300
EPISODES_A_FILE, BATCH, THREADS, BATCHES = 4, 16, 2, 6
CAMERA = "observation.images.top"


class Row(NamedTuple):
    """Encoder, frames between keyframes, options, and the frames of a sample."""

    codec: str
    gop: int
    options: Mapping[str, str]
    offsets: Sequence[int]


ROWS = {
    "av1-2": Row("libsvtav1", 2, {"preset": "12", "crf": "30"}, [-10, 0]),
    "h264-20": Row("libx264", 20, {"crf": "23"}, range(0, 40, 5)),
    "h264-250": Row("libx264", 250, {"crf": "23"}, range(0, 40, 5)),
}
_TORCHCODEC = """
import json, sys, time
from torchcodec.decoders import VideoDecoder
batches = json.load(open(sys.argv[1]))
known = {}
def turn():
    for batch in batches:
        for path, numbers in batch.items():
            if path not in known:
                known[path] = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1)
            known[path].get_frames_at(numbers)
turn()
began = time.process_time()
turn()
print(time.process_time() - began)
"""


def write(folder: Path, row: Row) -> None:
    """A LeRobot dataset of version 3.0: a still scene, a few things that move, a sensor's noise."""
    rng = np.random.default_rng(0)
    firsts = np.arange(EPISODES + 1) * STEPS
    columns: dict[str, list[Any]] = {}
    rows = []
    for file in range(EPISODES // EPISODES_A_FILE):
        path = folder / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        scheduled = os.sched_getscheduler(0), os.sched_getparam(0)
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream(
                row.codec, rate=FPS, options={**row.options, "g": str(row.gop)}
            )
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for _ in range(EPISODES_A_FILE):
                for picture in _scene(rng):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            container.mux(stream.encode())
        os.sched_setscheduler(0, *scheduled)  # SVT-AV1 makes root's threads real-time
    for episode in range(EPISODES):
        steps = np.arange(STEPS)
        file, place = divmod(episode, EPISODES_A_FILE)
        for name, values in {
            "action": list(rng.normal(size=(STEPS, 7)).astype(np.float32)),
            "observation.state": list(rng.normal(size=(STEPS, 7)).astype(np.float32)),
            "timestamp": (steps / FPS).astype(np.float32).tolist(),
            "frame_index": steps.tolist(),
            "episode_index": [episode] * STEPS,
            "index": (firsts[episode] + steps).tolist(),
            "task_index": [0] * STEPS,
        }.items():
            columns.setdefault(name, []).extend(values)
        rows.append({
            "episode_index": episode, "tasks": ["move it"], "length": STEPS,
            "data/chunk_index": 0, "data/file_index": 0,
            "dataset_from_index": int(firsts[episode]),
            "dataset_to_index": int(firsts[episode + 1]),
            f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": file,
            f"videos/{CAMERA}/from_timestamp": place * STEPS / FPS,
            f"videos/{CAMERA}/to_timestamp": (place + 1) * STEPS / FPS,
        })  # fmt: skip
    floats: dict[str, Any] = {"dtype": "float32", "shape": [7], "names": None}
    one: dict[str, Any] = {"shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0", "fps": FPS, "chunks_size": 1000, "robot_type": "none",
        "total_episodes": EPISODES, "total_frames": EPISODES * STEPS, "total_tasks": 1,
        "splits": {"train": f"0:{EPISODES}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            CAMERA: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3],
                     "names": ["height", "width", "channels"]},
            "action": floats, "observation.state": floats,
            "timestamp": {"dtype": "float32", **one},
            **{name: {"dtype": "int64", **one}
               for name in ("frame_index", "episode_index", "index", "task_index")},
        },
    }  # fmt: skip
    for name, table in {
        "data/chunk-000/file-000": pa.table(columns),
        "meta/episodes/chunk-000/file-000": pa.Table.from_pylist(rows),
        "meta/tasks": pa.table({"task_index": [0], "__index_level_0__": ["move it"]}),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")
    (folder / "meta/info.json").write_text(json.dumps(info), encoding="utf-8")


def _scene(rng: np.random.Generator) -> Any:
    """Pictures of one episode."""
    small = rng.integers(30, 220, (24, 32, 3)).astype(np.uint8)
    scene = cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    things = [(rng.uniform(0, 6, 4), rng.integers(20, 70), rng.integers(0, 255, 3).tolist())
              for _ in range(6)]  # fmt: skip
    noise = rng.normal(0, 3, (8, HEIGHT, WIDTH, 1)).astype(np.int16)
    for step in range(STEPS):
        picture = scene.copy()
        for (a, b, c, d), radius, colour in things:
            x = WIDTH * (0.5 + 0.4 * np.sin(a + step * 0.01 * (1 + b)))
            y = HEIGHT * (0.5 + 0.4 * np.cos(c + step * 0.01 * (1 + d)))
            cv2.circle(picture, (int(x), int(y)), int(radius), colour, -1, cv2.LINE_AA)
        yield np.clip(picture + noise[rng.integers(8)], 0, 255).astype(np.uint8)


class Alone:
    """Decoding alone, of samples whose packets lie in memory.

    Args:
        folder: the dataset.
        size: side of the square pictures; ``None``: as they are.
        skipping: whether frames are skipped that are not wanted and not referred to.
    """

    def __init__(self, folder: Path, size: int | None, *, skipping: bool = False) -> None:
        self._size, self._skipping = size, skipping
        self._threads, self._own = ThreadPoolExecutor(THREADS), threading.local()
        self._files: list[tuple[Any, list[tuple[bytes, int]], list[tuple[int, int]]]] = []
        self.decodes = self.asked = 0
        for path in sorted(folder.glob("videos/*/*/*.mp4")):
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                found: list[tuple[bytes, int, bool]] = [(bytes(one), one.pts or 0, one.is_keyframe)
                         for one in container.demux(stream) if one.size]  # fmt: skip
                context = stream.codec_context
            times = sorted(pts for _, pts, _ in found)
            number = {pts: k for k, pts in enumerate(times)}
            packets = [(data, number[pts]) for data, pts, _ in found]
            place = {shown: at for at, (_, shown) in enumerate(packets)}
            keys = [at for at, one in enumerate(found) if one[2]]
            spans = [
                (max(k for k in keys if packets[k][1] <= shown), place[shown])
                for shown in range(len(times))
            ]
            self._files.append((context, packets, spans))

    def batch(self, samples: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Decode samples: a file, and numbers of its frames."""
        list(self._threads.map(self._sample, samples))

    def _sample(self, sample: tuple[int, Sequence[int]]) -> None:
        file, numbers = sample
        like, packets, spans = self._files[file]
        if not hasattr(self._own, "context"):
            name = {"av1": "libdav1d"}.get(like.codec.canonical_name, like.codec.canonical_name)
            context = self._own.context = av.CodecContext.create(name, "r")
            context.extradata, context.thread_count = like.extradata, 1
            self._own.reformatter = VideoReformatter()
        context, out = self._own.context, []
        by_key: dict[int, list[int]] = {}
        for number in sorted(set(numbers)):
            by_key.setdefault(spans[number][0], []).append(number)
        for key, wanted in by_key.items():
            left, ends = set(wanted), {spans[one][1] for one in wanted}
            context.flush_buffers()
            at = key
            while left:
                packet = None
                if at < len(packets):
                    packet = av.Packet(packets[at][0])
                    packet.pts = packet.dts = packets[at][1]
                    if self._skipping:
                        context.skip_frame = "DEFAULT" if at in ends else "NONREF"
                for frame in context.decode(packet):
                    self.decodes += 1
                    if frame.pts in left:
                        left.discard(frame.pts)
                        out.append(self._pixels(frame))
                at += 1
        self.asked += len(numbers)

    def _pixels(self, frame: Any) -> Any:
        rgb = self._own.reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return rgb if self._size is None else cv2.resize(rgb, (self._size, self._size))


def spec_of(folder: Path, row: Row, size: int | None) -> PipelineSpec:
    """The loader's spec."""
    return PipelineSpec.model_validate({
        "datasets": [{
            "name": "videos", "path": str(folder), "images": {"top": CAMERA}, "action": "action",
            "state": "observation.state", "language": "task", "split": {"train": "train"},
        }],
        "sample": {"frame_offsets": list(row.offsets)},
        "cameras": {"top": {"size": [size, size] if size else [HEIGHT, WIDTH]}},
        "batch": {"size": BATCH},
    })  # fmt: skip


def measure(folder: Path, name: str, size: int | None, rounds: int, torchcodec: str) -> None:
    """Print the figures of one row."""
    row = ROWS[name]
    alone = {"alone": Alone(folder, size), "skipping": Alone(folder, size, skipping=True)}
    times: dict[str, list[float]] = {"ours": [], **{one: [] for one in alone}}
    drawn: list[list[tuple[int, list[int]]]] = []
    knobs = {"decode_threads": THREADS, "ring_slots": 4}
    with AutoLoader(
        spec_of(folder, row, size), ram_floor="200MB", output="numpy", controller=False, knobs=knobs
    ) as loader:
        batches = iter(loader)
        for warm in (True, *[False] * rounds):
            time.sleep(3)  # until the ring is full
            began, whole, taken = time.process_time(), tree_cpu_s(os.getpid()), []
            for _ in range(4 if warm else BATCHES):
                place = next(batches)["provenance"]
                taken.append([_shown(episode, t, row) for *_, episode, t in place.tolist()])
            own = time.process_time() - began
            for one, rival in alone.items():
                before = time.process_time()
                for samples in taken:
                    rival.batch(samples)
                used = time.process_time() - before
                if not warm:
                    times[one].append(used / len(taken) / BATCH * 1e3)
            time.sleep(3)
            if not warm:
                rest = time.process_time() - began - own  # what decoding alone took
                used = tree_cpu_s(os.getpid()) - whole - rest
                times["ours"].append(used / len(taken) / BATCH * 1e3)
                drawn += taken
    shown = f"{name} {size or 'full'}"
    ours = statistics.median(times["ours"])
    parts = [f"ours {ours:.2f} ms"]
    for one, rival in alone.items():
        ratio = statistics.median(b / a for a, b in zip(times["ours"], times[one], strict=True))
        decodes = rival.decodes / rival.asked
        parts.append(
            f"{one} {statistics.median(times[one]):.2f} ms, {decodes:.1f} decodes a frame: "
            f"{ratio:.2f} of it"
        )
    fed = _packets_fed(folder, row, size)
    parts[0] += f", {fed:.1f} packets a frame"
    print(shown, "; ".join(parts), flush=True)
    if torchcodec:
        seconds = _torchcodec(torchcodec, folder, drawn)
        theirs = seconds / len(drawn) / BATCH * 1e3
        print(f"{shown} torchcodec {theirs:.2f} ms: ours takes {ours / theirs:.2f} of its time")


def _shown(episode: int, t: int, row: Row) -> tuple[int, list[int]]:
    """The file of a sample, and its frames there."""
    file, place = divmod(episode, EPISODES_A_FILE)
    steps = (min(max(t + offset, 0), STEPS - 1) for offset in row.offsets)
    return file, [place * STEPS + step for step in steps]


def _packets_fed(folder: Path, row: Row, size: int | None) -> float:
    """Packets that decoders are given for a frame of a sample, over a pass of threads."""
    real, fed, frames = av.Packet, [0], 0

    def packet(data: Any) -> Any:
        fed[0] += 1
        return real(data)

    with AutoLoader(
        spec_of(folder, row, size), ram_floor="200MB", output="numpy", controller=False,
        isolation="thread", knobs={"decode_threads": THREADS, "ring_slots": 4},
    ) as loader:  # fmt: skip
        batches = iter(loader)
        av.Packet = packet  # type: ignore[assignment,misc]
        for _ in range(2 * BATCHES):
            frames += next(batches)["images"]["top"].shape[0] * len(row.offsets)
        av.Packet = real  # type: ignore[misc]
    return fed[0] / frames


def _torchcodec(python: str, folder: Path, drawn: Sequence[Any]) -> float:
    """Processor seconds of torchcodec for these batches."""
    files = sorted(str(one) for one in folder.glob("videos/*/*/*.mp4"))
    batches = []
    for samples in drawn:
        asked: dict[str, list[int]] = {}
        for file, numbers in samples:
            asked.setdefault(files[file], []).extend(numbers)
        batches.append(asked)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(batches, file)
        file.flush()
        done = subprocess.run(
            [python, "-c", _TORCHCODEC, file.name], check=True, stdout=subprocess.PIPE, text=True
        )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.video")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--sizes", nargs="+", choices=["full", "224"], default=["full", "224"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bench-video")
    parser.add_argument("--torchcodec", default="", help="a Python that has torchcodec")
    chosen = parser.parse_args()
    for name in chosen.rows:
        folder = chosen.folder / name
        if not (folder / "meta/info.json").exists():
            write(folder, ROWS[name])
        for size in chosen.sizes:
            side = None if size == "full" else int(size)
            measure(folder, name, side, chosen.rounds, chosen.torchcodec)


if __name__ == "__main__":
    main()
