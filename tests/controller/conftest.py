"""What tests of a loader under control share."""

import pytest
from doubles import FakeHeadroom
from situations import FLOOR

import autoloader.loader
from autoloader.controller.reflex import ControlLoop
from autoloader.host.units import GIB


@pytest.fixture
def headroom(monkeypatch: pytest.MonkeyPatch) -> FakeHeadroom:
    """The loader's headroom, told by the test; its threads of control do not run by themselves."""
    fake = FakeHeadroom(FLOOR + 4 * GIB)
    monkeypatch.setattr(autoloader.loader, "HeadroomProbe", lambda: fake)
    monkeypatch.setattr(ControlLoop, "_run", lambda self, once, period_s: None)
    return fake
