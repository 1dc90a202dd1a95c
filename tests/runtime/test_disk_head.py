"""The disk head: what it counts, and that an order with locality moves it once a block."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from disk_head import counts, mounted
from rlds_files import episode, jpeg, write_dataset
from streams import spec_file

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.storage import Rates, propose_locality
from autoloader.pipeline.read import blocks
from bench.shown_files import NotMountedError, why_not

STEPS, EPISODES, FRAME_BYTES = 12, 30, 4_000

needs_fuse = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One dataset of 1.5 MB behind a head that costs no time."""
    folder = tmp_path_factory.mktemp("head")
    padded = [[jpeg(n, t).ljust(FRAME_BYTES, b"\0") for t in range(STEPS)] for n in range(EPISODES)]
    records = [
        episode(number, STEPS, **{"observation/image": frames})
        for number, frames in enumerate(padded)
    ]
    write_dataset(folder / "data", [records[:15], records[15:]])
    with contextlib.ExitStack() as stack:
        try:
            shown = mounted(folder / "data", folder / "mount", seek_s=0, bytes_per_s=1e12)
            found = stack.enter_context(shown)
        except NotMountedError as error:
            pytest.skip(f"this system mounts no FUSE: {error}")
        yield found


def spec_of(mount: Path) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "datasets": [{"name": "robot", "path": str(next(mount.rglob("features.json")).parent),
                      "images": {"primary": "observation/image"}, "action": ["action"]}],
        "cameras": {"primary": {"size": [12, 16]}}, "weights": "natural", "batch": {"size": 12},
    }  # fmt: skip


@needs_fuse
def test_plan_shows_what_storage_gives_of_an_order(mount: Path, tmp_path: Path, cli: Cli):
    near = {"locality": {"block": "64KiB", "window": 4}}
    spec = spec_file(tmp_path, spec_of(mount) | {"mixing": near})
    found = cli.json("plan", "--spec", spec, "--ram-floor", "64MiB")["locality"]
    assert found["file_system"].startswith("fuse")
    anywhere, asked = found["orders"]
    assert min(asked["storage_samples_per_s"], anywhere["storage_samples_per_s"]) > 0
    assert "as asked for" in cli("plan", "--spec", spec, "--ram-floor", "64MiB", "-v").out


@pytest.mark.parametrize(
    ("random_s", "left", "wanted"),
    [
        (8e-3, 2 * 10**12, "mixing: {locality: {block: 8MiB, window: 64}}"),
        (8e-3, 10**9, "mixing: {locality: {block: 8MiB, window: 8}}"),
        (8e-3, 10**8, None),  # there is no room for windows of four blocks
        (5e-5, 10**12, None),  # a fast disk
    ],
)
def test_a_block_makes_up_for_its_seek_and_windows_fit_into_memory(
    random_s: float, left: int, wanted: str | None
):
    found = propose_locality(
        Rates(random_s, 200e6),
        reads=2,
        sample_bytes=20_000,
        dataset_bytes=[10**12, 10**12, 5 * 2**20],
        left_bytes=left,
    )
    assert (found and f"mixing: {found.text}") == wanted
    if found is not None:
        assert found.memory_bytes <= left // 2


@needs_fuse
def test_locality_moves_the_head_once_a_block_and_reads_the_data_once_a_pass(mount: Path):
    near = {"locality": {"block": 2**16, "window": 4}}
    spec = PipelineSpec.from_mapping(spec_of(mount) | {"mixing": near})
    before, seen = counts(mount), 0
    with AutoLoader(spec, ram_floor=0, controller=False, output="numpy") as loader:
        for _ in range(3):
            seen += sum(len(batch["action"]) for batch in loader)
        after = counts(mount)
    assert seen == 3 * STEPS * EPISODES
    # Blocks overlap by a sixth; the index read all once, and two pieces of the plan may be ahead.
    read = after["bytes"] - before["bytes"]
    assert read < 1.25 * FRAME_BYTES * (4 * STEPS * EPISODES + 2 * blocks._PIECE + 64)
    assert after["seeks"] - before["seeks"] < read / (5 * FRAME_BYTES)
