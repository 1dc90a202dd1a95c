"""The arithmetic of flow matching, on plain tensors."""

import pytest
import torch
from hypothesis import given
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
