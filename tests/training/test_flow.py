"""The arithmetic of flow matching, on plain tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training import flow

CPU = torch.device("cpu")


@given(steps=st.integers(1, 40), width=st.integers(1, 9), seed=st.integers(0, 99))
def test_along_the_true_velocity_euler_arrives_at_the_target_in_any_number_of_steps(
    steps: int, width: int, seed: int
):
    drawn = flow.draw(5, width, CPU, seed)
    target = flow.draw(5, width, CPU, seed, "target").noise
    answer = flow.velocity(target, drawn.noise)
    torch.testing.assert_close(
        flow.euler(lambda _x, _t: answer, drawn.noise, steps), target, atol=1e-5, rtol=1e-5
    )


@given(t=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_path_leads_from_the_target_to_the_noise_and_its_slope_is_the_velocity(
    t: float, seed: int
):
    target, noise = torch.randn(
        2, 4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )

    def at(time: float) -> torch.Tensor:
        return flow.on_path(target, flow.Draw(noise, torch.full((4, 1), time)))

    torch.testing.assert_close(at(0.0), target)
    torch.testing.assert_close(at(1.0), noise)
    torch.testing.assert_close((at(1.0) - at(t)), (1 - t) * flow.velocity(target, noise))


def test_euler_asks_for_the_velocity_from_t_1_downwards():
    asked: list[float] = []

    def field(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        asked.append(float(t[0, 0]))
        return torch.zeros_like(x)

    flow.euler(field, torch.zeros(1, 2), 4)
    assert asked == [1.0, 0.75, 0.5, 0.25]


def test_times_follow_beta_1_5_and_noise_is_standard_normal():
    drawn = flow.draw(200_000, 1, CPU, "times")
    t = drawn.t.flatten().sort().values
    assert t[0] > 0
    assert t[-1] <= 1
    # The distribution function of Beta(1.5, 1) is t ** 1.5.
    evenly = torch.arange(1, len(t) + 1) / len(t)
    assert (t**1.5 - evenly).abs().max() < 0.005
    assert t.mean() == pytest.approx(0.6, abs=0.005)
    assert drawn.noise.mean() == pytest.approx(0, abs=0.01)
    assert drawn.noise.var() == pytest.approx(1, abs=0.02)


def test_draws_are_a_function_of_their_key_alone():
    first = flow.draw(3, 4, CPU, 7, "train", 12, 0)
    torch.manual_seed(1)
    again = flow.draw(3, 4, CPU, 7, "train", 12, 0)
    assert torch.equal(first.noise, again.noise)
    assert torch.equal(first.t, again.t)
    for other in ((8, "train", 12, 0), (7, "val", 12, 0), (7, "train", 13, 0), (7, "train", 12, 1)):
        assert not torch.equal(first.noise, flow.draw(3, 4, CPU, *other).noise)


@settings(max_examples=15)
@given(mean=st.floats(-2, 2), scale=st.floats(0.2, 3))
def test_the_loss_of_the_mean_is_what_answering_the_mean_velocity_costs(mean: float, scale: float):
    rows = 20_000
    target = mean + scale * flow.draw(rows, 2, CPU, "target").noise
    drawn = flow.draw(rows, 2, CPU, "drawn")
    told = flow.mean_loss(target, drawn, torch.full((2,), mean)).mean()
    assert told == pytest.approx(1 + scale**2, rel=0.05)


@settings(max_examples=15)
@given(scale=st.floats(0.3, 2))
def test_no_linear_answer_that_sees_nothing_undercuts_the_blind_loss(scale: float):
    rows = 20_000
    t = torch.full((rows, 1), 0.6)
    drawn = flow.Draw(flow.draw(rows, 1, CPU, "drawn").noise, t)
    target = scale * flow.draw(rows, 1, CPU, "target").noise
    x, v = flow.on_path(target, drawn), flow.velocity(target, drawn.noise)
    slope = (x * v).mean() / x.square().mean()
    best = (v - slope * x).square().mean()
    told = flow.blind_loss(drawn, torch.tensor([scale**2])).mean()
    assert told == pytest.approx(float(best), rel=0.05)
