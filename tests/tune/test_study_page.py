"""The report of a study: what it tells, as a page and as text."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pytest
from html_pages import ReadPage

from autoloader.controller.profile import HostFacts, Limits, Profile, Provenance
from autoloader.spec.knobs import Knobs
from autoloader.tune.bound import Analyst
from autoloader.tune.finals import Contender, FinalsResult
from autoloader.tune.ledger import TrialRecord, records
from autoloader.tune.measurement import StageCost, Trace
from autoloader.tune.report import TuneReport
from autoloader.tune.study import StudyResult
from autoloader.tune.trial import Outcome, TrialResult

GIB = 2**30


def result(outcome: Outcome, rate: float | None, peak: int | None, **more: Any) -> TrialResult:
    peak_bytes = None if peak is None else peak * 2**20
    values = {"min_headroom_bytes": 6 * GIB, **more}
    return TrialResult(outcome, 1.0, rate, peak_bytes, **values)


def trial(number: int, threads: int, rate: float, peak: int, **more: Any) -> TrialRecord:
    label = more.pop("label", "search")
    knobs = {"decode_threads": threads, "ring_slots": 8, "reader": "indexed"}
    found = result(Outcome.COMPLETE, rate, peak, **more)
    return TrialRecord(number, label, "here", knobs, rate, found)


def ended(number: int, outcome: Outcome, reason: str, **more: Any) -> TrialRecord:
    return TrialRecord(number, "search", "", {}, None, TrialResult(outcome, reason=reason, **more))


TRIALS = (
    trial(0, 1, 100.0, 300, label="start"),
    trial(1, 2, 190.0, 320),
    trial(2, 3, 240.0, 420),
    trial(3, 4, 230.0, 500, busy=True, measurement={"trace": {"others_cpus": 1.5}}),
    ended(4, Outcome.INFEASIBLE, "headroom 4.90 GiB <floor>", min_headroom_bytes=5 * GIB),
    ended(5, Outcome.FAILED, "its process was gone; the trial was queued again"),
)


def report(**changes: Any) -> TuneReport:
    """A report whose best has three times the start's threads."""
    start, best = Contender(Knobs(decode_threads=1), True), Contender(Knobs(decode_threads=3))
    for number, rate in enumerate((235.0, 245.0)):
        start.rounds[number] = result(Outcome.COMPLETE, 100.0, 300)
        best.rounds[number] = result(Outcome.COMPLETE, rate, 420)
    analyst = Analyst(3)
    trace = Trace(160, 10.0, {"decode": StageCost(0.01, 0.0, 0.0, 2)}, 0.0)
    analyst.learn({"trace": asdict(trace)})
    values: dict[str, Any] = {
        "verdict": FinalsResult(start, best, 2),
        "first": start.rounds[0],
        "trials": TRIALS,
        "name": "mix & <match>",
        "storage": "sqlite:///x",
        "bound": analyst.bound(),
    }
    profile = Profile(
        schema_version=2,
        name="lab",
        host=HostFacts(cpus=2, memory_bytes=24 * GIB),
        limits=Limits(ram_floor=5 * GIB),
        provenance=Provenance(
            source="measured", detail="a study", command="autoloader.tune --budget 1m"
        ),
    )
    return TuneReport(profile, StudyResult(**(values | changes)), Path("/x/lab.yaml"))


def test_the_page_needs_nothing_beside_it_and_shows_everything():
    found = ReadPage(report().page())
    for words in (
        "mix & <match>",
        "headroom 4.90 GiB <floor>",
        "queued again",
        "80% of the bound",
        "RAM floor",
        "others used 1.5 cpus",
        "Profile: /x/lab.yaml",
        "lab: 2.40 times as fast as the start, with 95 % between",
        "autoloader.tune --budget 1m",
        "2.35, 2.45",
    ):
        assert words in found.words
    assert sum("fill: var(--good)" in dot for dot in found.dots) == 1, "the best"
    assert any("fill: var(--b)" in dot for dot in found.dots), "the start"


def test_a_study_of_nothing_has_a_page_too():
    start = Contender(Knobs(), is_start=True)
    empty = report(trials=(), bound=None, verdict=FinalsResult(start, start))
    assert "No trial was measured to its end" in ReadPage(empty.page()).words
    assert "not known" in empty.text()


def test_the_text_tells_start_best_and_bound_and_ends_with_a_sentence():
    text = report().text()
    assert "80% of the bound" in text
    assert "decode_threads: 1 → 3" in text
    assert "\x1b" not in report(name="\x1b[31m red").text()
    assert text.splitlines()[-1] == report().sentence


def test_trials_are_read_off_a_real_study():
    study = optuna.create_study(direction="maximize")
    space = {"decode_threads": optuna.distributions.IntDistribution(1, 4)}
    more: list[dict[str, Any]] = [
        {
            "value": 9.0,
            "user_attrs": {
                "outcome": "complete",
                "label": "start",
                "measurement": {"samples_per_s": 90.0},
            },
        },
        {
            "state": optuna.trial.TrialState.PRUNED,
            "intermediate_values": {40: 7.0, 80: 6.0},
            "user_attrs": {"outcome": "pruned"},
        },
        {
            "state": optuna.trial.TrialState.PRUNED,
            "user_attrs": {"outcome": "infeasible", "reason": "<floor>"},
        },
        {"state": optuna.trial.TrialState.FAIL},
        {"value": 9.0, "user_attrs": {"outcome": "known"}},
    ]
    for one in more:
        study.add_trial(
            optuna.create_trial(params={"decode_threads": 2}, distributions=space, **one)
        )
    found = records(study.trials)
    outcomes = [one.result.outcome.value for one in found]
    assert outcomes == ["complete", "pruned", "infeasible", "failed"], "known is none"
    assert [one.result.samples_per_s for one in found] == [90.0, 6.0, None, None]
    assert [one.label for one in found][:2] == ["start", "search"]
    assert "queued again" in found[3].result.reason
    assert "<td>&lt;floor&gt;</td>" in report(trials=found).page()


def test_a_page_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "deep" / "s.html"
    assert report().write_page(path) == path
    assert [one.name for one in path.parent.iterdir()] == ["s.html"]
    assert report().write_page(tmp_path / "deep" / "s.html" / "x.html") is None
    assert "cannot be written" in caplog.text
