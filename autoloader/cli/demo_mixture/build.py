"""Writes the demo mixture: 29 real TFDS datasets of drawn robot episodes, and their ``mix.yaml``.

Theory of operation. TensorFlow must not enter the caller's process, so child processes
(``cli.demo_mixture.write``) write the datasets, which are divided among them by cost. A child
reports over its stdout, one JSON object a line: ``{"episodes": 1}`` for progress, ``{"dataset":
{...}}`` when a dataset is complete. A child ends when its stdin does: whatever ends the caller ends
its children. The mixture is built in a temporary folder and renamed when it is complete, so that a
folder with a ``demo.json`` is always complete.

The same arguments give the same frames, actions and words: every draw is keyed by seed, dataset
name, split and episode. (Record bytes may differ: protocol buffers do not fix the order of a map.)

What it holds at scale 1 and seed 0 (``demo.json`` beside ``mix.yaml`` has this too, and a row for
each dataset): 848 episodes of 31,821 frames, 46,076 images with the other cameras, 770 MB. Small
frames flatter a loader, so the sizes of the encoded images (kB, 10³ bytes):

    ======  =====  =====  ======  ======  =====  =====  =====  =====  =====
    kB       0–5   5–10   10–15   15–20   20–25  25–30  30–35  35–40  40–45
    images  1,619  9,104  11,249  12,802  3,569  2,718  2,678  1,718    619
    ======  =====  =====  ======  ======  =====  =====  =====  =====  =====

and frames by the size of the primary camera's pictures (height × width):

    ==================  ======  ========
    pictures            frames  datasets
    ==================  ======  ========
    128×128 – 160×160    4,189         6
    180×240 – 224×224    5,692         6
    180×320 – 256×320   13,023         9
    300×300 – 300×400    1,529         2
    360×640              2,512         2
    480×640              4,876         4
    ==================  ======  ========

Not here: which datasets there are (``cli.demo_mixture.datasets``), writing one
(``cli.demo_mixture.write``), the text of ``mix.yaml`` (``cli.demo_mixture.build``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

from autoloader.cli.demo_mixture.datasets import DATASETS, SIZE_BINS_KB, VERSION, DemoDataset
from autoloader.errors import SourceError, UsageError
from autoloader.host.extras import require
from autoloader.host.files import Waiting, locked
from autoloader.host.supervision.start import start
from autoloader.spec.reading import flow
from autoloader.storage.places import cache_root

logger = logging.getLogger(__name__)

FORMAT = 2
"""Raised when the same arguments begin to give other data."""

MARKER = "demo.json"
SPEC_FILE = "mix.yaml"
_BUILT_WITHIN_S = 3600.0


def demo_directory(*, datasets: int = 29, scale: float = 1.0, seed: int = 0) -> Path:
    """Where the user's cache keeps the demo mixture of these arguments; may not exist yet."""
    key = hashlib.sha256(json.dumps(_identity(datasets, scale, seed)).encode()).hexdigest()[:12]
    return cache_root() / "demo" / key


def ensure_demo(
    directory: Path | None = None,
    *,
    datasets: int = 29,
    scale: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The demo mixture's ``mix.yaml``, built now unless it is there. Callers may come at once.

    Args:
        directory: where it lies; default the user's cache directory.
        datasets: how many of the 29, the first ones.
        scale: factor on the number of episodes; about 770 MB at 1.
        seed: of everything drawn.
        progress: called with episodes done and in all while it is built.

    Raises:
        UsageError: an argument is out of range, or ``directory`` holds something else.
        SourceError: it could not be written.
        MissingExtraError: it has to be written, and there is no TFDS to write it.
    """
    _check(datasets, scale, seed)
    place = directory or demo_directory(datasets=datasets, scale=scale, seed=seed)
    place = place.resolve()
    identity = _identity(datasets, scale, seed)
    if _holds(place, identity):
        return place / SPEC_FILE
    with _locked(place):
        if _holds(place, identity):
            return place / SPEC_FILE
        return _build(place, datasets, scale, seed, progress)


def _build(
    directory: Path,
    datasets: int,
    scale: float,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Path:
    """Write the mixture into ``directory``, which is new or empty; the caller holds the lock."""
    require("tensorflow_datasets", "writing the demo mixture")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} is there and not empty",
            remedy="name a new folder, or delete this one if its content is not needed",
        )
    chosen = DATASETS[:datasets]
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        rows = _run_children(partial, chosen, scale, seed, progress)
        (partial / SPEC_FILE).write_text(spec_text(chosen, scale, seed), encoding="utf-8")
        summary = {"identity": _identity(datasets, scale, seed), **_summary(rows)}
        (partial / MARKER).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    except OSError as error:
        raise _unwritable(directory, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory / SPEC_FILE


def _check(datasets: int, scale: float, seed: int) -> None:
    if not 1 <= datasets <= len(DATASETS):
        raise UsageError(
            f"datasets: {datasets} is out of range", remedy=f"choose 1 to {len(DATASETS)}"
        )
    if not 0 < scale <= 1000:
        raise UsageError(
            f"scale: {scale} is out of range",
            remedy="choose above 0 and up to 1000; 1 is about 770 MB",
        )
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed: {seed} is out of range", remedy="choose 0 or a positive integer")


def _identity(datasets: int, scale: float, seed: int) -> dict[str, Any]:
    declared = hashlib.sha256(repr(DATASETS[:datasets]).encode()).hexdigest()[:12]
    return {
        "format": FORMAT,
        "declared": declared,
        "datasets": datasets,
        "scale": float(scale),
        "seed": seed,
    }


def _holds(directory: Path, identity: Mapping[str, Any]) -> bool:
    """Whether this very mixture lies there; raises where another one does."""
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if found == identity:
        return True
    raise UsageError(
        f"{directory} holds another demo mixture ({found}), asked for was {dict(identity)}",
        remedy="delete the folder to have it built anew, or name another one",
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds a lock file beside ``directory``; it is gone afterwards."""
    path = directory.with_name(f".{directory.name}.lock")
    waits = Waiting(f"the demo mixture in {directory}", _BUILT_WITHIN_S, say=logger.warning)
    with contextlib.ExitStack() as holding:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            holding.enter_context(locked(path, waits))
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _unwritable(directory: Path, error: OSError) -> SourceError:
    return SourceError(
        f"the demo mixture cannot be written to {directory}: {error}",
        remedy="name a folder that can be written to and has about 1 GB free",
    )


def _shared_out(chosen: Sequence[DemoDataset], count: int) -> list[list[DemoDataset]]:
    """Datasets over processes: the dearest first, each to the one with least to do."""

    def cost(dataset: DemoDataset) -> float:
        height, width = dataset.size
        pixels = height * width * (6 if dataset.look.encoding == "png" else 1)
        return dataset.frames * (pixels + 60_000)

    shares: list[list[DemoDataset]] = [[] for _ in range(max(1, min(count, len(chosen))))]
    loads = [0.0] * len(shares)
    for dataset in sorted(chosen, key=cost, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(dataset)
        loads[least] += cost(dataset)
    return shares


def _run_children(
    directory: Path,
    chosen: Sequence[DemoDataset],
    scale: float,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    """Starts the children, passes their progress on, and returns a row per dataset, in order."""
    total = sum(one.train_episodes(scale) + one.val_episodes(scale) for one in chosen)
    rows: dict[str, dict[str, Any]] = {}
    done, told = 0, threading.Lock()

    def follow(child: subprocess.Popen[str], log: IO[str]) -> None:
        nonlocal done
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                report = json.loads(line)
                if "dataset" in report:
                    rows[report["dataset"]["name"]] = report["dataset"]
                    continue
                with told:
                    done += report["episodes"]
                    if progress is not None:
                        progress(done, total)
        if child.wait() != 0:
            raise _child_failed(child.returncode, log)

    # Children end before who follows them is waited for.
    with ThreadPoolExecutor(thread_name_prefix="demo") as pool, contextlib.ExitStack() as stack:
        following = []
        for share in _shared_out(chosen, min(2, os.cpu_count() or 1)):
            log: IO[str] = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            arguments = ["--into", str(directory), "--only", ",".join(one.name for one in share)]
            arguments += ["--scale", repr(float(scale)), "--seed", str(seed)]
            child = start(
                "autoloader.cli.demo_mixture.write",
                arguments,
                changes={"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.callback(_end, child)
            following.append(pool.submit(follow, child, log))
        for one in as_completed(following):
            one.result()
    return [rows[one.name] for one in chosen]


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _child_failed(code: int, log: IO[str]) -> SourceError:
    log.seek(0)
    last = [line.strip() for line in log.read().splitlines() if line.strip()][-1:] or ["no message"]
    return SourceError(
        f"a process that writes the demo mixture ended with {code}: {last[0]}",
        remedy="check free disk space and memory, and that tensorflow_datasets can be imported",
    )


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``demo.json`` says beside the arguments."""
    bins = [sum(row["histogram"][i] for row in rows) for i in range(len(SIZE_BINS_KB) + 1)]
    edges = ["0", *map(str, SIZE_BINS_KB), "more"]
    return {
        "episodes": sum(row["train_episodes"] + row["val_episodes"] for row in rows),
        "frames": sum(row["frames"] for row in rows),
        "images": sum(row["images"] for row in rows),
        "image_bytes": sum(row["image_bytes"] for row in rows),
        "histogram_kb": {f"{edges[i]}-{edges[i + 1]}": count for i, count in enumerate(bins)},
        "datasets": list(rows),
    }


def spec_text(chosen: Sequence[DemoDataset], scale: float, seed: int) -> str:
    """``mix.yaml`` of these datasets."""
    lines = [
        "# The demo mixture. Paths start at this file's folder.",
        "schema_version: 1",
        f"seed: {seed}",
        'defaults: {split: {train: "train", val: "val"}}',
        "datasets:",
    ]
    for one in chosen:
        lines.append(f"  - name: {one.name}")
        lines.append(f"    path: {one.name}/{VERSION}")
        lines.append(f"    weight: {one.weight}")
        if not one.has_val:
            few = one.train_episodes(scale) < 40
            parts = ("train[:-1]", "train[-1:]") if few else ("train[:95%]", "train[95%:]")
            lines.append(f'    split: {{train: "{parts[0]}", val: "{parts[1]}"}}')
        if one.second:
            lines.append(f"    # a second camera: {one.second[0]}")
        lines.append(f"    images: {{primary: {one.primary}}}")
        action = one.action_fields or one.action_paths
        lines.append(f"    action: {flow(action[0] if len(action) == 1 else list(action))}")
        if one.state:
            state = list(one.state)
            lines.append(f"    state: {flow(state[0] if len(state) == 1 else state)}")
        if one.language:
            words = one.language
            lines.append(
                f"    language: {flow(words[0] if len(words) == 1 else {'any_of': list(words)})}"
            )
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        "cameras: {primary: {size: [256, 256]}}",
        "batch: {size: 48}",
    ]
    return "\n".join(lines) + "\n"
