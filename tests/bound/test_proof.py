"""What held frames give is measured where there is time, and else the command is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.bound.proof import CacheProof, prove


def proven(left_s: float, answer: Mapping[str, Any] | None) -> tuple[CacheProof, list[int]]:
    asked: list[int] = []

    def primed(
        cache_bytes: int, warmup: int, batches: int, timeout_s: float
    ) -> tuple[Mapping[str, Any] | None, str]:
        assert cache_bytes == 10**9
        assert 20 < timeout_s <= left_s, "even where it may take what it takes, it ends"
        assert timeout_s < 1000
        assert batches == 160, "two passes have 63"
        asked.append(warmup)
        return answer, "headroom 1 GiB"

    found = prove(
        primed,
        cache_bytes=10**9,
        pass_samples=1000,
        batch_size=32,
        batches=160,
        samples_per_s=100.0,
        cached_samples_per_s=200.0,
        left_s=left_s,
    )
    return found, asked


def test_four_passes_prime_the_cache_and_then_it_is_measured() -> None:
    found, asked = proven(100.0, {"samples_per_s": 250.0, "cache": {"hit_ratio": 0.5}})
    assert asked == [125], "batches of 32 that hold 4000 samples"
    assert (found.samples_per_s, found.hit_ratio) == (250.0, 0.5)
    assert "250 samples/s, 50% of the frames" in found.describe()


def test_it_may_take_what_it_takes_where_it_is_asked_for() -> None:
    found, asked = proven(float("inf"), {"samples_per_s": 250.0})
    assert asked
    assert found.samples_per_s == 250.0


def test_without_time_nothing_is_measured_and_the_command_is_told() -> None:
    found, asked = proven(20.0, None)
    assert not asked
    assert found.samples_per_s is None
    assert "--prove-cache" in found.describe()
    assert "--set cache_bytes=1000000000 --warmup 125" in found.describe()


def test_a_measurement_that_fails_says_why() -> None:
    found, _ = proven(100.0, None)
    assert found.describe() == "not proven: headroom 1 GiB"
