"""Datasets far away that have index files beside them: read by index from the first batch."""

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from rlds_files import Written
from streams import dataset_of, opened, spec_file, spec_of

from autoloader import AutoLoader
from autoloader.cli.app import main
from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.process.planning import plan_loader
from autoloader.storage.part import CHUNK_BYTES
from autoloader.storage.shards import shard_cache
from autoloader.storage.store import store
from bench.control.slow_files import slow_files
from bench.remote.server import FileServer, serve


@pytest.fixture
def clean(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bucket, read by gcsfs, with an empty cache; what is put into it goes again."""
    monkeypatch.setattr(files, "_here", None)
    fresh(tmp_path / "first", monkeypatch)
    yield lab
    for written in (lab.small, lab.large):
        shutil.rmtree(written.path / ".autoloader-index", ignore_errors=True)


def fresh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine: nothing is in its cache."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(folder))
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "64MiB")
    store.__init__()


def mix_file(folder: Path, dataset: dict[str, Any]) -> str:
    plain = {
        "datasets": [dataset],
        "cameras": {"primary": {"size": [12, 16]}},
        "batch": {"size": 4},
    }
    return str(spec_file(folder, plain))


def batches(
    dataset: Any, count: int, state: Any = None, **mixing: Any
) -> tuple[list[dict[str, Any]], Any]:
    """Some batches of an endless mixture, and the state behind them."""
    spec = spec_of(dataset, mixing={"epoch": "forever", **mixing})
    with opened(spec, controller=False) as loader:
        assert loader.knobs.reader == "indexed"
        if state is not None:
            loader.load_state_dict(state)
        found = [
            {
                "provenance": batch["provenance"].copy(),
                "image": batch["images"]["primary"].copy(),
                "action": batch["action"].copy(),
                "language": list(batch["language"]),
            }
            for _, batch in zip(range(count), loader, strict=False)
        ]
        return found, loader.state_dict()


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert np.array_equal(one[name], other[name]), name


def test_every_host_but_the_first_reads_by_index_in_the_order_of_local_files(
    clean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    large = clean.dataset(clean.large)
    found = cli.json("index", "--spec", mix_file(tmp_path, large), "--beside")
    assert found["put_beside"] == 2
    fresh(tmp_path / "second", monkeypatch)
    clean.storage.asked.clear()
    expected, _ = batches(clean.large, 12)
    first, state = batches(large, 7)
    rest, _ = batches(large, 5, state)
    assert_same(first + rest, expected)
    asked = clean.storage.asked
    listed = Counter(one.name for one in asked if one.target == "listing")
    assert set(listed.values()) == {1}, "a directory was listed twice in a minute"
    shards = [one for one in asked if one.target == "media" and ".tfrecord-" in one.name]
    data = [one for one in shards if "autoloader-index" not in one.name]
    starts = Counter((one.name, one.start // CHUNK_BYTES) for one in data)
    assert set(starts.values()) == {1}, "bytes were fetched twice"
    assert not any(one.authorised for one in asked)
    found = cli.json("index", "--spec", mix_file(tmp_path, large), "--beside")
    assert (found["built_shards"], found["put_beside"]) == (0, 0)


def test_rules_and_statistics_take_the_index_and_fetch_no_shard(
    clean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    large = {**clean.dataset(clean.large), "keep": {"language": "required"}}
    assert main(["index", "--spec", mix_file(tmp_path, large), "--beside"]) == 0
    fresh(tmp_path / "second", monkeypatch)
    clean.storage.asked.clear()
    told = {"normalize": {"action": {"method": "mean_std"}}}
    plan, local = (
        plan_loader(spec_of({**large, "path": path}, **told), ram_floor="64MiB")
        for path in (large["path"], str(clean.large.path))
    )
    assert plan.knobs.reader == "indexed"
    assert plan.mixture.statistics == local.mixture.statistics
    assert plan.counts["large"].samples == local.counts["large"].samples
    media = clean.storage.of("media", "tfrecord")
    assert not [one for one in media if "autoloader-index" not in one.name]


@pytest.fixture(scope="module")
def web(_served: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileServer, Any]]:
    """A web server over a copy of the large dataset."""
    folder = tmp_path_factory.mktemp("web")
    large: Written = _served[0].large
    shutil.copytree(large.path, folder / large.name / "1.0.0")
    with serve(folder) as server:
        yield server, large


def test_a_web_server_serves_index_files_that_were_made_of_its_folder(
    web: tuple[FileServer, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    server, large = web
    fresh(tmp_path / "there", monkeypatch)
    folder = server.folder / large.name / "1.0.0"
    near = dataset_of(large, path=str(folder))
    assert main(["index", "--spec", mix_file(tmp_path, near), "--beside"]) == 0
    fresh(tmp_path / "here", monkeypatch)
    monkeypatch.setattr(files, "_here", None)
    away = dataset_of(large, path=f"{server.address}/{large.name}/1.0.0")
    found = cli.json("plan", "--spec", mix_file(tmp_path, away), "--ram-floor", "64MiB")
    assert found["datasets"]["large"]["reader"] == "indexed"
    told = found["remote"]
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.tfrecord-*")}
    assert {one["path"].rpartition("/")[2]: one["bytes"] for one in told["order"]} == sizes
    assert (told["shards"], told["missing_bytes"]) == (2, sum(sizes.values()))
    first = [one["needed_at"] for one in told["order"]]
    assert first[0] == 0
    assert first == sorted(first)
    assert told["seconds"] is None
    probed = [one for one in server.of("tfrecord", "GET") if "index" not in one.name]
    assert len(probed) <= 1, "a plan reads a part of one shard, to see how long decoding takes"
    assert_same(batches(away, 6)[0], batches(near, 6)[0])
    local = {"locality": {"block": "300kB", "window": 2}}
    assert_same(batches(away, 6, **local)[0], batches(near, 6, **local)[0])
    provenance = batches(near, 1)[0][0]["provenance"][0]
    assert told["order"][0]["path"].endswith(f"{provenance[2]:05}-of-00002")
    words = ("plan", "--spec", mix_file(tmp_path, away), "--ram-floor", "64MiB", "-v")
    assert "-- remote" in cli(*words).out


def test_without_index_files_a_web_servers_data_is_fetched_and_indexed_first(
    web: tuple[FileServer, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server, large = web
    fresh(tmp_path / "here", monkeypatch)
    monkeypatch.setattr(files, "_here", None)
    shutil.rmtree(server.folder / large.name / "1.0.0" / ".autoloader-index", ignore_errors=True)
    away = dataset_of(large, path=f"{server.address}/{large.name}/1.0.0")
    server.asked.clear()
    assert_same(batches(away, 6)[0], batches(large, 6)[0])
    asked = [one for one in server.of("tfrecord", "GET") if "index" not in one.name]
    assert sum(one.stop - one.start for one in asked) == sum(
        path.stat().st_size for path in large.path.glob("*.tfrecord-*")
    )


def test_what_is_streamed_fills_the_cache_and_is_read_by_index_from_the_next_start(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fresh(tmp_path / "cache", monkeypatch)
    small = here.dataset(here.small)
    spec = spec_of(small, mixing={"epoch": "forever"})
    with opened(spec, controller=False) as loader:
        assert loader.knobs.reader == "stream"
        next(iter(loader))
        folder = tmp_path / "cache" / "index"
        while len(list(folder.glob("*.index"))) < 2:
            time.sleep(0.01)
    here.storage.asked.clear()
    assert_same(batches(small, 4)[0], batches(here.small, 4)[0])
    assert not here.storage.of("media", "tfrecord"), "the shards were here"


def test_a_mount_whose_reads_take_their_time_is_read_once_and_gives_what_local_files_give(
    web: tuple[FileServer, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fresh(tmp_path / "here", monkeypatch)
    monkeypatch.setattr(files, "_here", None)
    large = web[1]
    shutil.copytree(large.path, tmp_path / "there" / "1.0.0")
    near = dataset_of(large, path=str(tmp_path / "there" / "1.0.0"))
    assert main(["index", "--spec", mix_file(tmp_path, near), "--beside"]) == 0
    try:
        with slow_files(tmp_path / "there", tmp_path / "mount") as mount:
            mount.say({"storage_ms": 8})
            away = dataset_of(large, path=f"file://{tmp_path / 'mount' / '1.0.0'}")
            expected = batches(large, 6)[0]
            assert_same(batches(away, 6)[0], expected)
            shards = tmp_path / "here" / "shards"
            for path in (tmp_path / "mount" / "1.0.0").glob("*.tfrecord-0*"):
                shard_cache().shard(f"file://{path}").fetch_whole()
            assert len(list(shards.glob("*.shard"))) == 2
            mount.say({"stalls": True})  # nobody asks it for anything now
            assert_same(batches(away, 6)[0], expected)
    except PermissionError:
        pytest.skip("nothing can be mounted here (FUSE)")


def test_no_credential_stands_in_a_spec_an_index_a_record_a_report_or_a_log(
    web: tuple[FileServer, Written],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    server, large = web
    netrc = tmp_path.with_name("netrc")
    netrc.write_text("machine 127.0.0.1 login ann password hunter2\n")
    netrc.chmod(0o600)
    fresh(tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(files, "_here", None)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("AUTOLOADER_RUN_DIR", str(tmp_path / "runs"))
    metrics = tmp_path / "m.prom"
    monkeypatch.setenv("AUTOLOADER_METRICS_FILE", str(metrics))
    monkeypatch.delenv("AUTOLOADER_DECISIONS")
    secret = "YW5uOmh1bnRlcjI="  # ann:hunter2
    known: list[str] = []

    def fault(asked: Any) -> int | None:
        known.append(asked.headers.get("authorization", ""))
        return None if secret in known[-1] else 401

    server.fault = fault
    away = dataset_of(large, path=f"{server.address}/{large.name}/1.0.0")
    mix, told = mix_file(tmp_path, away), []
    with caplog.at_level(logging.DEBUG):
        for words in (("index",), ("plan", "--ram-floor", "64MiB")):
            told += cli(words[0], "--spec", mix, *words[1:], "--json")[1:]
        spec = spec_of(away, mixing={"epoch": "forever"})
        with AutoLoader(spec, ram_floor="64MiB", output="numpy") as loader:
            for _ in loader:
                records = list((tmp_path / "runs").rglob("train-*.jsonl"))
                recorded = any('"moment"' in one.read_text() for one in records)
                if recorded and metrics.exists():
                    break
            told += [metrics.read_text(), json.dumps(loader.state_dict())]
            told += [repr(loader.statistics()), repr(loader.plan)]
        run = next((tmp_path / "runs").iterdir())
        page = tmp_path / "page.html"
        assert main(["report", str(run), "--output", str(page)]) == 0
        server.fault = lambda _: 403
        fresh(tmp_path / "refused", monkeypatch)
        with pytest.raises(SourceError) as raised:
            opened(spec)
        told.append(f"{raised.value} {raised.value.remedy}")
    server.fault = lambda _: None
    said = capsys.readouterr()
    told += [said.out, said.err, caplog.text]
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in made}
    assert {".yaml", ".index", ".shard", ".json", ".jsonl", ".html"} <= kinds, kinds
    assert known
    everything = "\n".join(told).encode() + b"".join(path.read_bytes() for path in made)
    assert server.address.encode() in everything
    for word in ("hunter2", secret):
        assert word.encode() not in everything, word
