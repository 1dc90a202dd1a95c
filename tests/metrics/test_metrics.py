"""Metrics have one name each, wherever they are read, and say what to do about their values."""

import contextlib
import re
import socket
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest, parser
from rlds_files import Written, png, written_steps
from streams import opened, spec_of

from autoloader.telemetry.exporter import Exporter, PipelineMetrics
from autoloader.telemetry.metrics import METRICS, compared, over_ranks
from autoloader.telemetry.statistics import DatasetStatistics, Statistics, merged, over

pytestmark = pytest.mark.usefixtures("no_thread_left_behind")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def a_moment(**changed: object) -> Statistics:
    plain = Statistics(
        run="host-1", pipeline=0, split="train", at_s=2.0, started_at_s=1.0, phase="running",
        limited_by="decode", bound_per_s=2000.0, batches=100, samples_per_s=500.0, wait_ratio=0.25,
        datasets={'a "b"\\c\nd': DatasetStatistics(0.5, 0.49, 3200, queue=12, stalls=3)},
        knobs={"ring_slots": 8, "reader": "indexed"},
    )  # fmt: skip
    return replace(plain, **changed)  # type: ignore[arg-type]


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name → labels → value, as Prometheus' own parser reads the text."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of_rank(rank: int, **own: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"rank": str(rank), "split": "train", "pipeline": "0", **own}.items()))


def text_of(*snapshots: Statistics) -> str:
    collector, registry = PipelineMetrics(), CollectorRegistry()
    for number, one in enumerate(snapshots):
        collector.put(("run", number), one)
    registry.register(collector)
    return generate_latest(registry).decode()


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


# --- declared once ------------------------------------------------------------------------------


def test_every_metric_says_what_it_is_and_what_to_do_and_has_its_unit_in_its_name():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    suffixes = {"bytes": "_bytes", "s": "_s", "samples/s": "_per_s", "of 1": "_ratio"}
    plain = {"dataset_share", "dataset_weight"}
    for metric in METRICS:
        assert metric.meaning
        assert metric.advice
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
        if metric.unit in suffixes and metric.name not in plain:
            assert metric.name.endswith(suffixes[metric.unit])


def test_what_is_not_measured_is_left_out_and_never_0():
    found = parsed(text_of(Statistics(run="r", split="train", at_s=2.0, started_at_s=1.0)))
    for name in ("wait_ratio", "headroom_bytes", "bound_per_s", "cache_hit_ratio"):
        assert f"autoloader_{name}" not in found


def test_counts_of_two_builders_become_one():
    here = {
        "datasets": {"a": {"samples": 3, "generations": 1}},
        "run_bytes": 5,
        "read_bytes": 7,
        "work": {"decode": (1.0, 2)},
        "cache": {"from_disk": 2},
    }
    there = {
        "datasets": {
            "a": {"samples": 4, "generations": 2, "awaits": "shard 3"},
            "b": {"queue": 1},
        },
        "run_bytes": 3,
        "read_bytes": 1,
        "work": {"decode": (0.5, 1), "turn": (2.0, 4)},
        "cache": {"from_disk": 1},
    }
    both = merged(here, there)
    assert both == {
        "datasets": {
            "a": {"samples": 7, "generations": 2, "awaits": "shard 3"},
            "b": {"queue": 1},
        },
        "run_bytes": 5,
        "read_bytes": 8,
        "work": {"decode": (1.5, 3), "turn": (2.0, 4)},
        "cache": {"from_disk": 3},
    }
    assert merged({}, here) == merged(here, {}) == here
    ended = over(both)["datasets"]
    assert (ended["a"]["samples"], ended["a"]["awaits"], ended["b"]["queue"]) == (7, "", 0)
    assert both["datasets"]["b"]["queue"] == 1


# --- Prometheus ---------------------------------------------------------------------------------


def test_the_text_is_read_by_prometheus_with_every_rank_and_label():
    moments = [a_moment(), a_moment(rank=1, batches=90, samples_per_s=450.0, wait_ratio=0.5)]
    found = parsed(text_of(*moments))
    assert found["autoloader_wait_ratio"] == {of_rank(0): 0.25, of_rank(1): 0.5}
    assert found["autoloader_batches_total"] == {of_rank(0): 100.0, of_rank(1): 90.0}
    assert found["autoloader_limited_by"][of_rank(0, limit="decode")] == 1
    assert found["autoloader_knob"] == {of_rank(r, knob="ring_slots"): 8.0 for r in (0, 1)}
    assert found["autoloader_dataset_stalls_total"][of_rank(0, dataset='a "b"\\c\nd')] == 3
    exported = {metric.exported_name for metric in METRICS}
    assert found.keys() <= exported


def test_a_port_shows_what_is_open_until_the_last_one_closes(port: int):
    first, second = (Exporter("host-1", number, port=port) for number in (0, 1))
    assert get(port) == ""
    first.write(a_moment())
    second.write(a_moment(pipeline=1, split="val"))
    assert len(parsed(get(port))["autoloader_wait_ratio"]) == 2
    second.close()
    second.close()
    assert len(parsed(get(port))["autoloader_wait_ratio"]) == 1
    first.close()
    with pytest.raises(OSError, match="refused"):
        get(port)


def test_a_port_that_is_taken_costs_a_warning_and_no_run(
    port: int, caplog: pytest.LogCaptureFixture
):
    with socket.create_server(("127.0.0.1", port)):
        shown = Exporter("host-1", 0, port=port)
        shown.write(a_moment())
        shown.close()
    assert "AUTOLOADER_METRICS_PORT" in caplog.text


def test_a_thousand_clients_that_say_nothing_cost_few_threads_and_hold_up_nobody(port: int):
    shown = Exporter("host-1", 0, port=port)
    shown.write(a_moment())
    before, most = threading.active_count(), 0
    with contextlib.ExitStack() as clients:
        for _ in range(1000):
            silent = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(b"GET / HT")
            most = max(most, threading.active_count())
        assert "autoloader_wait_ratio" in get(port)
    shown.close()
    assert most - before < 30


def test_a_file_is_replaced_whole_and_goes_with_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "autoloader.prom"
    shown = Exporter("host-1", 0, file=str(file))
    for batches in (1, 2):
        shown.write(a_moment(batches=batches))
        assert parsed(file.read_text())["autoloader_batches_total"] == {of_rank(0): batches}
    assert list(tmp_path.iterdir()) == [file]
    shown.close()
    assert not list(tmp_path.iterdir())
    lost = Exporter("host-1", 0, file=str(tmp_path / "missing" / "a.prom"))
    lost.write(a_moment())
    lost.write(a_moment())
    lost.close()
    assert len(caplog.records) == 1


# --- of a loader --------------------------------------------------------------------------------


written = written_steps([[8, 8]], encode=png, name="a")


def test_a_loader_tells_its_metrics_by_the_same_names(written: Written):
    spec = spec_of(written, mixing={"epoch": "forever"}, reader="indexed")
    with opened(spec) as loader:
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        told = loader.metrics()
    assert told["batches"] == 3
    assert told["dataset_share/a"] == 1.0
    assert told["knob/ring_slots"] >= 4
    assert told["headroom_bytes"] > 0
    assert {name.partition("/")[0] for name in told} <= {metric.name for metric in METRICS}
    assert not any(name.endswith(("/worst", "/mean")) for name in told)


def test_of_several_ranks_worst_and_mean_are_told():
    own = {"wait_ratio": 0.25, "samples_per_s": 500.0, "batches": 100.0}
    others = [
        a_moment(rank=1, batches=90, samples_per_s=450.0, wait_ratio=0.5),
        a_moment(rank=2, batches=90, samples_per_s=550.0, wait_ratio=None),
    ]
    found = over_ranks([own, *map(compared, others)])
    assert found["wait_ratio/worst"] == 0.5
    assert found["wait_ratio/mean"] == 0.375
    assert found["samples_per_s/worst"] == 450.0
    assert found["samples_per_s/mean"] == 500.0
    assert not any(name.startswith("batches/") for name in found)
    assert over_ranks([own]) == {}
