"""Damages real LeRobot episodes in a seeded way, and says whether every sample is right.

The episodes are those of ../shared/data, as v2.1 and, put together here, as v3.0 with two episodes
a video. Each damage is done to a copy and loaded. A row of a batch must have the numbers and the
picture that it has in the whole dataset. An episode without rows must be named: in the quarantine,
in a note, or in the error that refuses the dataset.

Not here: the long run (``tools/hunt/damage.py``).
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq
from streams import opened

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError

REAL = Path(__file__).parents[2].parent / "shared/data/g1_lerobot_v21"
WHOLE = (1, 2, 4, 5)
"""Episodes of it that have their video; they are numbered anew."""
CAMERA = "observation.images.cam_high"
FPS = 30
STEPS = 48
"""Rows that are kept of each episode, but for one each, so that lengths differ."""
EPISODES = "meta/episodes/chunk-000/file-000.parquet"

Rows = dict[int, tuple[int, bytes, bytes]]
"""Number of a row in the whole dataset → its episode, numbers and picture."""


def write_v21(root: Path, real: Path = REAL) -> None:
    """The beginnings of the whole episodes, numbered from 0 on."""
    info = json.loads((real / "meta/info.json").read_text())
    (root / "meta").mkdir(parents=True)
    info |= {"total_episodes": len(WHOLE), "splits": {"train": f"0:{len(WHOLE)}"}}
    (root / "meta/info.json").write_text(json.dumps(info))
    shutil.copy(real / "meta/tasks.jsonl", root / "meta/tasks.jsonl")
    lines, first = [], 0
    for number, old in enumerate(WHOLE):
        length = STEPS + number
        place = f"chunk-000/episode_{old:06d}"
        table = pq.read_table(real / f"data/{place}.parquet").slice(0, length)
        columns = {"episode_index": [number] * length, "index": range(first, first + length)}
        _write(root / f"data/chunk-000/episode_{number:06d}.parquet", _with(table, columns))
        _cut(
            [real / f"videos/chunk-000/{CAMERA}/episode_{old:06d}.mp4"],
            [length],
            root / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4",
        )
        lines.append({"episode_index": number, "tasks": ["x"], "length": length})
        first += length
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def write_v30(root: Path, old: Path) -> None:
    """The same with two episodes a video, and all rows in one Parquet file."""
    info = json.loads((old / "meta/info.json").read_text())
    place = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    info |= {
        "codebase_version": "v3.0",
        "data_path": f"data/{place}.parquet",
        "video_path": f"videos/{{video_key}}/{place}.mp4",
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    tables = [pq.read_table(one) for one in sorted((old / "data").rglob("*.parquet"))]
    _write(root / "data/chunk-000/file-000.parquet", pa.concat_tables(tables))
    lengths, rows = [len(one) for one in tables], []
    for number, length in enumerate(lengths):
        begin = sum(lengths[number - number % 2 : number])
        first = sum(lengths[:number])
        rows.append(
            {
                "episode_index": number,
                "tasks": ["x"],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": 0,
                "dataset_from_index": first,
                "dataset_to_index": first + length,
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": number // 2,
                f"videos/{CAMERA}/from_timestamp": begin / FPS,
                f"videos/{CAMERA}/to_timestamp": (begin + length) / FPS,
            }
        )
    _write(root / EPISODES, pa.Table.from_pylist(rows))
    task = json.loads((old / "meta/tasks.jsonl").read_text().splitlines()[0])
    tasks = {"task_index": [task["task_index"]], "__index_level_0__": [task["task"]]}
    _write(root / "meta/tasks.parquet", pa.table(tasks))
    videos = sorted((old / "videos").rglob("*.mp4"))
    for file in range(2):
        own = slice(2 * file, 2 * file + 2)
        place = root / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
        _cut(videos[own], lengths[own], place)


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _with(table: pa.Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    for name, values in columns.items():
        column = pa.array(values, table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _cut(sources: Sequence[Path], lengths: Sequence[int], target: Path) -> None:
    """The first packets of some videos, one behind the other, as they are."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(target), "w") as out:
        track: Any = None
        done = 0
        for source, length in zip(sources, lengths, strict=True):
            with av.open(str(source)) as container:
                stream = container.streams.video[0]
                assert stream.time_base is not None
                tick = round(1 / FPS / stream.time_base)
                track = track or out.add_stream_from_template(stream, opaque=True)
                kept = (one for one in container.demux(stream) if one.size)
                for number, packet in zip(range(length), kept, strict=False):
                    packet.pts = packet.dts = (done + number) * tick
                    packet.stream = track
                    out.mux(packet)
            done += length


def rows_of(root: Path) -> tuple[Rows, str]:
    """(every sample of a pass, what was said of what is left out)."""
    said: list[str] = []
    spec = PipelineSpec.from_mapping(
        {"datasets": [{"name": "g1", "path": str(root), "images": {"high": CAMERA},
                       "action": "action", "state": "observation.state", "language": "task",
                       "features": {"row": "index", "episode": "episode_index"}}],
         "cameras": {"high": {"size": [48, 64]}}, "batch": {"size": 8, "drop_last": False},
         "mixing": {"epoch": "pass"}, "errors": {"max_corrupt_ratio": 0.8}},
    )  # fmt: skip
    found: Rows = {}
    try:
        with opened(spec, controller=False) as loader:
            for batch in loader:
                for k, row in enumerate(batch["features"]["row"].reshape(-1).tolist()):
                    numbers = batch["action"][k].tobytes() + batch["state"][k].tobytes()
                    picture = batch["images"]["high"][k].tobytes()
                    episode = int(batch["features"]["episode"].reshape(-1)[k])
                    found[row] = (episode, numbers, picture)
            said += [one.reason for one in loader.quarantined()]
    except AutoloaderError as error:
        said.append(error.what)
    return found, "\n".join(said)


# -- damages: each takes the dataset and a source of chance, and returns what it did -------------


def _episodes(root: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    old = root / "meta/episodes.jsonl"
    if old.exists():
        rows = [json.loads(line) for line in old.read_text().splitlines()]
        change(rows)
        old.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    rows = pq.read_table(root / EPISODES).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), root / EPISODES)


def _cells(root: Path, chance: random.Random, column: str, change: Callable[[Any], Any]) -> str:
    """Change the values of a column in one row, or in all of an episode."""
    file = chance.choice(sorted((root / "data").rglob("*.parquet")))
    table = pq.read_table(file)
    values = table.column(column).to_pylist()
    row = chance.randrange(len(values))
    values[row] = change(values[row])
    pq.write_table(_with(table, {column: values}), file)
    return f"{column} of row {row} of {file.name}"


def _key(name: str) -> str:
    return f"videos/{CAMERA}/{name}"


def drift(root: Path, chance: random.Random) -> str:
    step = chance.choice([0.0005, 0.004, 0.02, 0.03, -0.004, 0.1])

    def change(rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows):
            row[_key("from_timestamp")] = max(0.0, row[_key("from_timestamp")] + step * number)
            row[_key("to_timestamp")] += step * (number + 1)

    _episodes(root, change)
    return f"starts drift by {step} s an episode"


def shift(root: Path, chance: random.Random) -> str:
    frames = chance.choice([1, 1, 2, 5])

    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row[_key("from_timestamp")] += frames / FPS

    _episodes(root, change)
    return f"all starts are {frames} frames late"


def swap_starts(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(range(4), 2)
    both = ("from_timestamp", "to_timestamp")
    names = chance.choice([both[:1], both, (*both, "file_index"), ("file_index",)])

    def change(rows: list[dict[str, Any]]) -> None:
        for key in map(_key, names):
            rows[one][key], rows[other][key] = rows[other][key], rows[one][key]

    _episodes(root, change)
    return f"{', '.join(names)} of episodes {one} and {other} change places"


def same_start(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(range(4), 2)

    def change(rows: list[dict[str, Any]]) -> None:
        rows[one][_key("from_timestamp")] = rows[other][_key("from_timestamp")]

    _episodes(root, change)
    return f"episode {one} has the start of episode {other}"


def null_in_list(root: Path, chance: random.Random) -> str:
    one = chance.randrange(4)
    names = ["length", "episode_index"]
    if (root / EPISODES).exists():
        names += [_key(name) for name in ("chunk_index", "file_index", "from_timestamp")]
        names += ["data/file_index"]
    name, value = chance.choice(names), chance.choice([None, float("nan"), -1])
    _episodes(root, lambda rows: rows[one].update({name: value}))
    return f"{name} of episode {one} is {value}"


def wrong_length(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(range(4), 2)
    more = chance.choice([1, -1, 7])

    def change(rows: list[dict[str, Any]]) -> None:
        rows[one]["length"] += more
        rows[other]["length"] -= more

    _episodes(root, change)
    return f"episode {one} is listed {more} longer, and {other} shorter"


def gap(root: Path, chance: random.Random) -> str:
    one = chance.randrange(4)
    _episodes(root, lambda rows: rows.pop(one))  # type: ignore[arg-type, return-value]
    return f"episode {one} is not listed"


def swap_videos(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(sorted((root / "videos").rglob("*.mp4")), 2)
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{one.name} and {other.name} change places"


def copy_video(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(sorted((root / "videos").rglob("*.mp4")), 2)
    shutil.copy(one, other)
    return f"{one.name} lies in the place of {other.name}"


def shorter_video(root: Path, chance: random.Random) -> str:
    file = chance.choice(sorted((root / "videos").rglob("*.mp4")))
    whole, less = file.with_suffix(".whole"), chance.choice([1, 2, 9])
    file.rename(whole)
    with av.open(str(whole)) as container:
        count = sum(bool(one.size) for one in container.demux(container.streams.video[0]))
    _cut([whole], [count - less], file)
    whole.unlink()
    return f"{file.name} lacks its last {less} frames"


def longer_video(root: Path, chance: random.Random) -> str:
    file = chance.choice(sorted((root / "videos").rglob("*.mp4")))
    whole, more = file.with_suffix(".whole"), chance.choice([1, 2, 9])
    file.rename(whole)
    with av.open(str(whole)) as container:
        count = sum(bool(one.size) for one in container.demux(container.streams.video[0]))
    lengths = [more, count] if chance.random() < 0.5 else [count, more]
    _cut([whole, whole], lengths, file)
    whole.unlink()
    return f"{file.name} has {more} frames more"


def missing_file(root: Path, chance: random.Random) -> str:
    every = [*(root / "videos").rglob("*.mp4"), *(root / "data").rglob("episode*.parquet")]
    file = chance.choice(sorted(every))
    file.unlink()
    return f"{file.name} is missing"


def cut_file(root: Path, chance: random.Random) -> str:
    every = [*(root / "videos").rglob("*.mp4"), *(root / "data").rglob("episode*.parquet")]
    file = chance.choice(sorted(every))
    file.write_bytes(file.read_bytes()[: file.stat().st_size * chance.randrange(1, 9) // 10])
    return f"{file.name} is cut off"


def null_in_rows(root: Path, chance: random.Random) -> str:
    names = ("action", "observation.state", "timestamp", "frame_index", "task_index")
    name = chance.choice(names)
    value = chance.choice([None, float("nan")]) if name == "timestamp" else None
    return _cells(root, chance, name, lambda _: value) + " is null"


def null_in_a_list(root: Path, chance: random.Random) -> str:
    name = chance.choice(("action", "observation.state"))
    return _cells(root, chance, name, lambda old: [None, *old[1:]]) + " has a null"


def short_list(root: Path, chance: random.Random) -> str:
    file = chance.choice(sorted((root / "data").rglob("*.parquet")))
    table = pq.read_table(file)
    values = table.column("action").to_pylist()
    row = chance.randrange(len(values))
    values[row] = values[row][:-1]
    column = pa.array(values, pa.list_(pa.float32()))
    number = table.column_names.index("action")
    pq.write_table(table.set_column(number, "action", column), file)
    return f"action of row {row} of {file.name} has a number less"


def lost_row(root: Path, chance: random.Random) -> str:
    file = chance.choice(sorted((root / "data").rglob("*.parquet")))
    table = pq.read_table(file)
    row = chance.randrange(len(table))
    pq.write_table(pa.concat_tables([table.slice(0, row), table.slice(row + 1)]), file)
    return f"row {row} of {file.name} is lost"


def late_times(root: Path, chance: random.Random) -> str:
    """All times of the rows begin at one frame, as GR00T writes them: right, and said."""
    del chance
    for file in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(file)
        times = [one + 1 / FPS for one in table.column("timestamp").to_pylist()]
        pq.write_table(_with(table, {"timestamp": times}), file)
    return "all times are one frame late"


def swap_rows(root: Path, chance: random.Random) -> str:
    files = sorted((root / "data").rglob("*.parquet"))
    file = chance.choice(files)
    table = pq.read_table(file)
    one, other = chance.sample(range(len(table)), 2)
    order = list(range(len(table)))
    order[one], order[other] = other, one
    pq.write_table(table.take(order), file)
    return f"rows {one} and {other} of {file.name} change places"


BOTH: Sequence[Callable[[Path, random.Random], str]] = (
    null_in_list, wrong_length, gap, swap_videos, copy_video, shorter_video, longer_video,
    missing_file, cut_file, null_in_rows, null_in_a_list, short_list, lost_row, late_times,
    swap_rows,
)  # fmt: skip
ONLY_V30 = (drift, drift, shift, shift, swap_starts, swap_starts, same_start)


def damages(count: int) -> Iterator[tuple[str, Callable[[Path, random.Random], str], int]]:
    """(version, damage, seed): every kind in turn, of v2.1 and of v3.0."""
    kinds = {"v2.1": list(BOTH), "v3.0": [*ONLY_V30, *BOTH]}
    for number in range(count):
        version = ("v3.0", "v2.1", "v3.0")[number % 3]
        every = kinds[version]
        yield version, every[number * 5 // 3 % len(every)], number


def wrong_rows(whole: Rows, found: Rows, said: str) -> list[str]:
    """What is not right: rows of other content, and episodes that are gone without a word."""
    wrong = []
    for row, (episode, numbers, picture) in found.items():
        if (numbers, picture) != whole[row][1:]:
            what = "numbers" if numbers != whole[row][1] else "picture"
            wrong.append(f"row {row} of episode {episode} has another {what}")
    gone = {one[0] for one in whole.values()} - {one[0] for one in found.values()}
    if gone and not said:
        wrong.append(f"episodes {sorted(gone)} are gone without a word")
    for episode, count in Counter(one[0] for one in found.values()).items():
        if count != sum(one[0] == episode for one in whole.values()):
            wrong.append(f"episode {episode} has {count} rows")
    return wrong[:3]


class Damaged:
    """Whole datasets, and damaged copies of them, below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._roots = {version: folder / version for version in ("v2.1", "v3.0")}
        write_v21(self._roots["v2.1"])
        write_v30(self._roots["v3.0"], self._roots["v2.1"])
        self.whole = {version: rows_of(root)[0] for version, root in self._roots.items()}

    def attempt(
        self, version: str, damage: Callable[[Path, random.Random], str], seed: int
    ) -> tuple[str, Rows, str, list[str]]:
        """(what was done, the rows then, what was said, what is wrong)."""
        root = self._folder / f"damaged-{seed}"
        shutil.copytree(self._roots[version], root)
        done = damage(root, random.Random(seed))
        found, said = rows_of(root)
        shutil.rmtree(root)
        wrong = wrong_rows(self.whole[version], found, said or damage.__name__ * (damage is gap))
        return done, found, said, wrong
