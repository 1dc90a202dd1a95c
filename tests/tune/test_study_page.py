"""The report of a study: what it tells, as a page and as text."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import optuna
import pytest

from autoloader.tune.page import Figures, Story, TrialFate, fates, page, plain_text, write_page

GIB = 2**30


def trial(number: int, threads: int, rate: float, peak: int, **more: Any) -> TrialFate:
    return TrialFate(
        number,
        more.pop("label", "search"),
        more.pop("outcome", "complete"),
        knobs=more.pop("knobs", {"decode_threads": threads, "ring_slots": 8, "reader": "indexed"}),
        samples_per_s=rate,
        peak_rss_bytes=peak * 2**20,
        min_headroom_bytes=6 * GIB,
        **more,
    )


TRIALS = (
    trial(0, 1, 100.0, 300, label="start"),
    trial(1, 2, 190.0, 320),
    trial(2, 3, 240.0, 420),
    trial(3, 4, 230.0, 500, busy=1.5),
    TrialFate(4, "search", "infeasible", "headroom 4.90 GiB <floor>", min_headroom_bytes=5 * GIB),
    TrialFate(5, "search", "failed", "its process was gone; the trial was queued again"),
)


def story(**changes: Any) -> Story:
    values: dict[str, Any] = {
        "study": "mix & <match>",
        "host": "2 cpus, 23.54 GiB, no GPU",
        "floor_bytes": 5 * GIB,
        "start": Figures(100.0, 300 * 2**20, 6 * GIB),
        "best": Figures(240.0, 420 * 2**20, 6 * GIB),
        "start_stays": False,
        "verdict": "speedup 2.40, with 95 % between 2.30 and 2.50",
        "ratios": (2.35, 2.45),
        "changed": {"decode_threads": (1, 3)},
        "bound_samples_per_s": 300.0,
        "bound_lines": ("80% of the bound of 300 samples/s, limited by cpu",),
        "trials": TRIALS,
        "notes": ("Profile: /x/lab.yaml",),
        "facts": (("command", "autoloader.tune --budget 1m"),),
    }
    return Story(**(values | changes))


class Checker(html.parser.HTMLParser):
    """Fails on a tag that is not closed, and on what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.dots: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe"}
        own = dict(attrs)
        assert "src" not in own
        assert (own.get("href") or "#").startswith("#")
        if tag == "use":
            self.dots.append(str(own["style"]))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_needs_nothing_beside_it_and_shows_everything() -> None:
    found = checked(page(story()))
    text = " ".join(found.text)
    for words in (
        "mix & <match>",
        "headroom 4.90 GiB <floor>",
        "queued again",
        "80% of the bound",
        "decode_threads: ",
        "RAM floor",
        "others used 1.5 cpus",
        "Profile: /x/lab.yaml",
        "autoloader.tune --budget 1m",
        "2.35, 2.45",
    ):
        assert words in text
    assert sum("fill: var(--good)" in dot for dot in found.dots) == 1, "the best"
    assert any("fill: var(--b)" in dot for dot in found.dots), "the start"


def test_a_study_of_nothing_has_a_page_too() -> None:
    empty = story(
        trials=(),
        bound_samples_per_s=None,
        bound_lines=(),
        ratios=(),
        changed={},
        start_stays=True,
        best=Figures(None, None, None),
        start=Figures(None, None, None),
    )
    text = " ".join(checked(page(empty)).text)
    assert "No trial was measured to its end" in text
    assert "not known" in plain_text(empty)


def test_plain_text_has_every_trial_with_its_reason_and_the_floor() -> None:
    text = plain_text(story())
    assert "the RAM floor is 5.00 GiB" in text
    assert "   4  search  infeasible" in text
    assert "headroom 4.90 GiB <floor>" in text
    assert "80% of the bound" in text
    assert "decode_threads: 1 → 3" in text
    assert "\x1b" not in plain_text(story(verdict="\x1b[31m red"))


def test_fates_are_read_off_a_real_study() -> None:
    study = optuna.create_study(direction="maximize")
    space = {"decode_threads": optuna.distributions.IntDistribution(1, 4)}
    more: list[dict[str, Any]] = [
        {"value": 9.0, "user_attrs": {"label": "start", "measurement": {"samples_per_s": 90.0}}},
        {"state": optuna.trial.TrialState.PRUNED, "intermediate_values": {40: 7.0, 80: 6.0}},
        {
            "state": optuna.trial.TrialState.PRUNED,
            "user_attrs": {"outcome": "infeasible", "reason": "floor", "stderr": "<slow disk>"},
        },
        {"state": optuna.trial.TrialState.FAIL},
        {"value": 9.0, "user_attrs": {"outcome": "known"}},
    ]
    for one in more:
        study.add_trial(
            optuna.create_trial(params={"decode_threads": 2}, distributions=space, **one)
        )
    found = fates(study.trials)
    assert [one.outcome for one in found] == ["complete", "pruned", "infeasible", "failed", "known"]
    assert [one.samples_per_s for one in found] == [90.0, 6.0, None, None, 9.0]
    assert [one.label for one in found][:2] == ["start", "search"]
    assert found[2].reason == "floor"
    assert "queued again" in found[3].reason
    assert "<summary>stderr</summary><pre>&lt;slow disk&gt;</pre>" in page(story(trials=found))


def test_a_page_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "deep" / "s.html"
    assert write_page(story(), path) == path
    assert [one.name for one in path.parent.iterdir()] == ["s.html"]
    assert write_page(story(), tmp_path / "deep" / "s.html" / "x.html") is None
    assert "cannot be written" in caplog.text
