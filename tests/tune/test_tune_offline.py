"""From options to a saved profile, over a real study and a fake measurement."""

import contextlib
import io
import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doubles import FakeHeadroom, ManualClock
from rich.console import Console

from autoloader.controller.profile import host_facts
from autoloader.controller.profiles import load_profile
from autoloader.errors import ProfileError, UsageError
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.tune import offline
from autoloader.tune.finals import changed_knobs
from autoloader.tune.measurement import StageCost, Trace
from autoloader.tune.offline import kept_knobs, tune
from autoloader.tune.report import LiveWatcher, TuneReport
from autoloader.tune.study import TuneOptions
from autoloader.tune.trial import Outcome, TrialProgress, TrialResult, TrialWatch

GIB = 2**30


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the folders of whoever runs the tests, who has no neighbours."""
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(offline, "others_cpus", lambda clock: 0.0)


@pytest.fixture
def spec_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of two datasets, planned without reading any."""
    path = tmp_path / "mix.yaml"
    datasets = ", ".join(
        f"{{name: {name}, path: {name}/1.0.0, images: {{primary: image}}}}"
        for name in ("one", "two")
    )
    path.write_text(
        f"datasets: [{datasets}]\ncameras: {{primary: {{size: [8, 8]}}}}\nbatch: {{size: 16}}\n"
    )

    def plan(spec: PipelineSpec, *, profile: str, ram_floor: int, **rest: Any) -> Any:
        resolved = load_profile(profile)
        shards = {dataset.name: 3 for dataset in spec.datasets}
        limits = KnobLimits(cpus=2, shards=shards, batch_bytes=10, budget_bytes=800)
        start, _ = resolved.profile.knobs.clamp(limits)
        knobs = Knobs.build({"reader": "indexed"}, base=start)
        return SimpleNamespace(
            profile=resolved,
            ram_floor_bytes=ram_floor,
            knobs=knobs,
            limits=limits,
            notes=(),
            mixture=SimpleNamespace(
                datasets=[
                    SimpleNamespace(
                        remote=False,
                        streamable=True,
                        cameras={},
                        slices=(),
                        sample=spec.sample,
                        keep=None,
                    )
                    for _ in shards
                ],
                spec=spec,
                layout=SimpleNamespace(batch_size=16, cameras={"primary": (8, 8)}, frames=1),
            ),
        )

    monkeypatch.setattr(offline, "plan_loader", plan)
    return path


def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
    """Faster with decode threads, whatever this machine is."""
    rate = 100.0 + 10 * knobs.decode_threads + 9 * (knobs.reader == "indexed")
    watch(TrialProgress(160, rate), 8 * GIB)
    return TrialResult(
        Outcome.COMPLETE,
        duration_s=1.0,
        samples_per_s=rate,
        peak_rss_bytes=GIB,
        min_headroom_bytes=7 * GIB,
        measurement={"time_to_first_batch_s": 2.0, "batch_latency_s": {"p50": 0.1, "p99": 0.2}},
    )


def run(spec_path: Path, measurer: Any = measure, **options: Any) -> TuneReport:
    clock = ManualClock()
    text = io.StringIO()
    wanted = {"host_profile": "local_dev", "floor_bytes": 5 * GIB, "trials": 8, **options}
    return tune(
        TuneOptions(spec_path, **wanted),
        LiveWatcher(Console(file=text), clock, 360, clock.now_s()),
        measure=measurer,
        headroom=FakeHeadroom(9 * GIB),
        clock=clock,
    )


def test_what_is_saved_pins_no_reader_that_is_usual_and_lists_no_knob_it_does_not_use(
    spec_path: Path,
):
    start = Knobs.build({"reader": "indexed", "cycle_length": 2, "io_threads": 1})
    winner = Knobs.build(
        {"reader": "indexed", "cycle_length": 8, "io_threads": 3, "bridge.cycle_length": 4}
    )
    kept = kept_knobs(winner, start, usual_reader="indexed")
    assert kept == Knobs.build({"reader": "auto", "cycle_length": 2, "io_threads": 3})
    assert set(changed_knobs(start, winner)) == {"io_threads"}
    other = kept_knobs(winner, start, usual_reader="stream")
    assert other.reader == "indexed", "another reader than the usual one was found, and is said"
    streams = kept_knobs(
        Knobs.build({"reader": "stream", "cycle_length": 8, "io_threads": 3}),
        start,
        usual_reader="stream",
    )
    assert streams == Knobs.build({"reader": "auto", "cycle_length": 8, "io_threads": 1})


def alike(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
    measured = {"samples_per_s": 100.0, "time_to_first_batch_s": 2.0}
    return TrialResult(Outcome.COMPLETE, 1.0, 100.0, GIB, measurement=measured)


def test_a_start_that_nothing_beats_is_kept_as_a_profile_of_this_host(
    spec_path: Path, tmp_path: Path
):
    report = run(spec_path, alike, study="mine")
    document = report.as_dict()
    path = tmp_path / "config" / "profiles" / "local_dev-tuned.yaml"
    assert document["profile_path"] == str(path)
    kept = load_profile("local_dev-tuned")
    assert kept.profile.knobs == load_profile("local_dev").profile.knobs
    assert kept.profile.host.is_same(host_facts())
    assert kept.profile.measurements["samples_per_s"] == 100.0
    assert kept.profile.measurements["confirmed_within_ratio"] == 0.0
    assert "the start stays: nothing that was compared" in kept.profile.provenance.detail
    assert document["verdict"] == report.text().splitlines()[-1]
    assert "can be more than 0.0% faster" in document["verdict"]
    again = run(spec_path, alike, host_profile="local_dev-tuned")
    assert again.path == path, "measured again, it is the same profile"
    assert load_profile(None).profile.provenance.study == again.result.name


def test_a_profile_that_won_a_study_is_confirmed_in_two_trials(spec_path: Path):
    calls = []

    def near(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        calls.append(knobs)
        trace = Trace(160, 10.0, {"decode": StageCost(0.01, 0.0, 0.0, 2)}, 0.0)
        measured = {"samples_per_s": 186.0, "trace": asdict(trace)}  # 93 % of the bound of 200
        return TrialResult(Outcome.COMPLETE, 1.0, 186.0, GIB, measurement=measured)

    run(spec_path, near)
    assert len(calls) > 2
    calls.clear()
    report = run(spec_path, near, host_profile="local_dev-tuned")
    assert len(calls) == 2
    assert "it won a study before, at 186 samples/s, and is as fast today" in report.sentence
    assert report.profile.measurements["finals_rounds"] > 0, "the next study knows it, too"
    assert report.profile.name == "local_dev-tuned"
    for more in ({"study": "mine"}, {"host_profile": "local_dev"}):
        calls.clear()
        run(spec_path, near, **{"host_profile": "local_dev-tuned"} | more)
        assert len(calls) > 2, "a study of a name, or of another start, searches"


def test_a_start_that_the_bound_alone_confirmed_won_no_study(spec_path: Path):
    rates = [196.0]

    def near(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        trace = Trace(160, 10.0, {"decode": StageCost(0.01, 0.0, 0.0, 2)}, 0.0)  # a bound of 200
        measured = {"samples_per_s": rates[0], "trace": asdict(trace)}
        return TrialResult(Outcome.COMPLETE, 1.0, rates[0], GIB, measurement=measured)

    first = run(spec_path, near)
    assert "so near is the bound" in first.sentence
    assert "finals_rounds" not in first.profile.measurements
    rates[0] = 189.0
    again = run(spec_path, near, host_profile="local_dev-tuned")
    assert "it won a study before" not in again.sentence
    assert again.profile.measurements["finals_rounds"] > 0, "it searched, and compared"


def test_a_study_of_the_start_alone_leaves_a_profile_that_claims_nothing(spec_path: Path):
    report = run(spec_path, alike, trials=1)
    assert report.path is not None
    assert "confirmed_within_ratio" not in report.profile.measurements
    assert "nothing was compared with it" in report.sentence


def test_a_start_that_gives_no_batch_within_the_budget_leaves_no_profile(spec_path: Path):
    def late(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        return TrialResult(Outcome.FAILED, duration_s=timeout_s, reason="no result within 60 s")

    with pytest.raises(UsageError, match="gave no batch within the budget"):
        run(spec_path, late, study="mine")
    assert load_profile().profile.name == "local_dev"


def test_a_start_that_outlasts_the_budget_leaves_a_profile_that_says_so(spec_path: Path):
    def late(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        watch(TrialProgress(40, 50.0), None)
        return TrialResult(Outcome.FAILED, duration_s=timeout_s, reason="no result within 60 s")

    report = run(spec_path, late, study="mine")
    kept = load_profile("local_dev-tuned").profile
    assert report.path is not None
    assert kept.knobs == load_profile("local_dev").profile.knobs
    assert kept.measurements.get("samples_per_s") == 50.0
    assert kept.provenance.source == "measured"
    why = "the start stays: the budget ended before the start was measured"
    assert why in report.sentence
    assert why in kept.provenance.detail
    assert why in report.page_path.read_text()
    json.dumps(report.as_dict(), allow_nan=False)


def test_the_document_has_the_keys_of_the_contract(spec_path: Path, tmp_path: Path):
    document = json.loads(json.dumps(run(spec_path, study="mine").as_dict(), allow_nan=False))
    assert set(document) == {
        "profile_path", "profile_notes", "report_path", "verdict", "best", "start", "speedup",
        "speedup_interval", "confirmed_within_ratio", "bound_samples_per_s", "limited_by", "lifts",
        "trace", "ended", "trials", "study", "storage",
    }  # fmt: skip
    for end in ("best", "start"):
        assert set(document[end]) == {"knobs", "samples_per_s", "min_headroom_bytes"}
    assert set(document["trials"]) == {"complete", "pruned", "infeasible", "failed"}
    assert document["study"] == "mine"
    assert document["storage"].startswith("sqlite:///")
    assert document["best"]["samples_per_s"] == pytest.approx(
        document["speedup"] * document["start"]["samples_per_s"]
    )
    Knobs.build(document["best"]["knobs"])


def test_each_trial_leaves_a_line_with_its_rate_the_best_and_headroom():
    text, clock = io.StringIO(), ManualClock()
    watcher = LiveWatcher(Console(file=text), clock, 360, clock.now_s())
    watcher.started("trial 2/12 (guess)")
    clock.advance(20)
    watcher.progressed(TrialProgress(10, 5.0), 7 * GIB, 90.0)
    trace = {"others_cpus": 1.53}
    busy = TrialResult(
        Outcome.COMPLETE, samples_per_s=50.0, measurement={"trace": trace}, busy=True
    )
    watcher.ended(busy, 90.0)
    assert "50 samples/s (others used 1.5 cpus), best so far 90" in text.getvalue()
    text.truncate(text.seek(0))
    watcher.started("trial 2/12 (guess)")
    watcher.ended(
        TrialResult(Outcome.INFEASIBLE, reason="[floor] breached", min_headroom_bytes=6 * GIB), 90.0
    )
    assert text.getvalue() == (
        "trial 2/12 (guess): infeasible: [floor] breached, best so far 90, "
        "headroom 6.00 GiB, 20 of 360 s\n"
    )


def test_a_study_that_goes_on_must_be_of_the_same_mixture(spec_path: Path):
    run(spec_path, trials=1, study="mine")
    spec_path.write_text(spec_path.read_text().replace("size: 16", "size: 24"))
    with pytest.raises(UsageError, match="study 'mine' measured another mixture"):
        run(spec_path, trials=1, study="mine")


def test_hosts_that_are_not_equal_share_no_trials(spec_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(spec_path, trials=2, study="mine")
    real = offline.described_host
    monkeypatch.setattr(
        offline,
        "described_host",
        lambda *args, **more: real(*args, **more).model_copy(update={"cpu_model": "Z80"}),
    )
    other = run(spec_path, trials=1, study="mine")
    assert [one.label for one in other.result.trials] == ["start"]


def test_a_storage_that_goes_away_ends_the_study_and_saves_nothing(spec_path: Path, tmp_path: Path):
    def pulls_the_plug(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        with contextlib.closing(sqlite3.connect(tmp_path / "out" / "studies.db")) as base:
            base.execute("DROP TABLE trial_user_attributes")
        return TrialResult(Outcome.COMPLETE, duration_s=1.0, samples_per_s=100.0)

    with pytest.raises(UsageError, match="lost in the middle of the study 'mine'") as caught:
        run(spec_path, pulls_the_plug, study="mine", out=tmp_path / "out")
    assert "--study mine" in caught.value.remedy
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["studies.db"]


def test_a_study_leaves_a_page_without_passwords(spec_path: Path, tmp_path: Path):
    report = run(spec_path, study="mine", command="tune --storage pg://u:secret@h/x")
    assert report.page_path == tmp_path / "data" / "autoloader" / "mine.html"
    written = report.page_path.read_text()
    assert "decode_threads" in written
    assert "pg://u:***@h/x" in written
    assert "secret" not in written
    assert "secret" not in (report.profile.provenance.command or "")


def test_a_profile_that_cannot_be_written_costs_nothing_that_was_measured(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", "/proc/nowhere")
    with pytest.raises(ProfileError, match="the study 'mine' is kept") as caught:
        run(spec_path, study="mine")
    assert "--study mine" in caught.value.remedy
    page = (tmp_path / "data" / "autoloader" / "mine.html").read_text()
    assert "cannot be written" in page
    assert "decode_threads" in page
