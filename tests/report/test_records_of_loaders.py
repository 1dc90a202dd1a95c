"""Running loaders keep the record that the environment asks for."""

import re
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from rlds_files import episode, png, write_dataset
from streams import opened, spec_of

from autoloader import AutoLoader
from autoloader.cli.recorded_run import Run, read_run
from autoloader.errors import UsageError

LIMIT_S = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a loader in a child left: three seconds of it, with a frame that cannot be decoded.

    Beside it, what it showed as metrics meanwhile: ``scraped``, ``written``.
    """
    folder = tmp_path_factory.mktemp("runs")
    records = [episode(number, 8, encode=png) for number in range(20)]
    records[3] = {**records[3], "observation/image": [b"no picture"] * 8}
    written = write_dataset(folder / "data", [records], name="a")
    spec = spec_of(
        written, mixing={"epoch": "forever"}, reader="indexed", errors={"max_corrupt_ratio": 0.5}
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOADER_RUN_DIR", str(folder / "left"))
        patch.delenv("AUTOLOADER_DECISIONS")
        patch.setenv("AUTOLOADER_METRICS_PORT", str(port))
        patch.setenv("AUTOLOADER_METRICS_FILE", f"{folder}/")
        with AutoLoader(spec, ram_floor="64MiB", output="numpy") as loader:
            deadline = time.monotonic() + LIMIT_S
            for _ in loader:
                time.sleep(0.005)
                files = list(folder.rglob("train-*.jsonl"))
                moments = files[0].read_text().count('"moment"') if files else 0
                if moments >= 4 or time.monotonic() > deadline:
                    break
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                (folder / "scraped").write_bytes(answer.read())
            for file in folder.glob("*.prom"):
                (folder / "written").write_bytes(file.read_bytes())
    return folder / "left"


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


def test_a_record_holds_what_the_loader_did_and_that_it_ended(run: Run):
    assert run.own.ended
    assert run.own.facts["batch_size"] == 4
    assert run.own.facts["replay_one_batch"] is False
    assert run.own.last.batches > 0
    assert list(run.own.last.datasets) == ["a"]
    assert 0 < run.length_s < LIMIT_S
    assert run.samples_per_s


def test_a_record_names_the_records_that_were_left_out(run: Run):
    [bad] = run.own.bad
    assert (bad["dataset"], bad["record"]) == ("a", 3)
    assert bad["reason"]


@pytest.mark.parametrize("place", ["scraped", "written"])
def test_a_running_loader_shows_its_metrics_and_takes_them_away_at_its_end(
    place: str, folder: Path
):
    text = (folder.parent / place).read_text()
    assert re.search(r'autoloader_batches_total\{.*rank="0",split="train"', text)
    assert 'dataset="a"' in text
    assert not list(folder.parent.glob("*.prom"))


@pytest.mark.parametrize("port", ["0", "70000", "http"])
def test_a_port_that_cannot_be_is_refused_in_words(
    port: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_METRICS_PORT", port)
    spec = spec_of(dataset(folder), reader="indexed")
    with pytest.raises(UsageError, match=f"AUTOLOADER_METRICS_PORT='{port}' is not allowed"):
        opened(spec)


def test_the_decisions_lie_with_the_record_and_replay(folder: Path, cli: Cli):
    [log] = folder.rglob("decisions.jsonl")
    told = cli.json("replay", log)
    assert told["decisions"] >= 4
    assert told["differences"] == []


@pytest.mark.parametrize(
    ("wanted", "record", "in_ring"),
    [("off", "", False), ("kept", "kept", False), ("", "cache/runs", True)],
)
def test_a_record_goes_where_it_is_wanted_or_to_the_ring_in_the_cache(
    wanted: str,
    record: str,
    in_ring: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("AUTOLOADER_RUN_DIR", wanted)
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    spec = spec_of(dataset(folder), reader="indexed")
    with opened(spec) as loader:
        asked = loader._pipeline.setup.control
    expected = str(tmp_path / record / asked.run) if record else ""
    assert (asked.record, asked.record_in_ring) == (expected, in_ring)
    assert not (tmp_path / "off").exists()


def dataset(folder: Path) -> dict[str, Any]:
    return {
        "name": "a",
        "path": str(folder.parent / "data" / "a" / "1.0.0"),
        "images": {"primary": "observation/image"},
    }
