"""Optional probes, real and fake, pass one suite; a failing one is asked again, later each time."""

import logging
from pathlib import Path
from typing import Any

import pytest
from doubles import FakeProbe, ManualClock
from fake_nvml import FakeNvml, NVMLError

from autoloader.host.clock import Watched
from autoloader.host.gpu import GpuProbe
from autoloader.host.headroom import PressureProbe

PSI = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=3.00 avg60=0 avg300=0 total=1\n"


def gpu(nvml: FakeNvml, visible: str | None = None, trainer: int = 7) -> GpuProbe:
    return GpuProbe(visible, trainer, nvml=nvml)


def pressure(folder: Path) -> PressureProbe:
    (folder / "memory").write_text(PSI)
    return PressureProbe(folder / "memory")


@pytest.mark.parametrize("kind", ["fake", "pressure", "gpu"])
def test_a_probe_that_dies_is_unknown_soon_is_named_once_and_comes_back(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    clock, nvml = ManualClock(), FakeNvml({"load": 50})
    fake: FakeProbe[float] = FakeProbe(1.0)
    probe: Any = {"fake": fake, "pressure": pressure(tmp_path), "gpu": gpu(nvml)}[kind]

    def dead(now: bool) -> None:
        nvml.dead = NVMLError("GPU is lost") if now else None
        fake.error = OSError("gone") if now else None
        (tmp_path / "memory").write_text("" if now else PSI)

    watched: Watched[Any] = Watched(probe.read, kind, clock.now_s)
    assert watched.read() is not None
    dead(True)
    known = []
    for _ in range(60):
        clock.advance(1.0)
        known.append(watched.read() is not None)
    assert known == [True] * 3 + [False] * 57
    assert sum(kind in record.message for record in caplog.records) == 1
    dead(False)
    clock.advance(40.0)
    assert watched.read() is not None


def test_a_failing_probe_is_asked_again_with_growing_pauses():
    clock = ManualClock()
    probe: FakeProbe[float] = FakeProbe(None)
    watched = Watched(probe.read, "fake", clock.now_s)
    for _ in range(1000):
        assert watched.read() is None
        clock.advance(1.0)
    assert 5 <= probe.reads <= 10


def test_pressure_is_per_cent_of_ten_seconds_and_unknown_where_absent(tmp_path: Path):
    assert pressure(tmp_path).read() == 12.5
    assert PressureProbe(tmp_path / "nowhere").read() is None


# --- GPU ------------------------------------------------------------------------------------------


def test_the_least_busy_visible_device_counts():
    nvml = FakeNvml({"load": 90}, {"load": 40}, {"load": 10})
    assert gpu(nvml, "0,1").read().busy_ratio == 0.4


def test_of_many_devices_those_of_the_trainer_count():
    nvml = FakeNvml({"load": 90, "pids": {7: 0}}, {"load": 0})
    found = gpu(nvml).read()
    assert (found.busy_ratio, found.shared) == (0.9, False)


def test_a_device_with_others_on_it_is_shared():
    assert gpu(FakeNvml({"load": 99, "pids": {7: 0, 8: 0}})).read().shared


def test_devices_are_found_by_uuid_and_what_follows_a_wrong_name_is_ignored():
    nvml = FakeNvml({"load": 10, "uuid": "GPU-a"}, {"load": 70, "uuid": "MIG-b"})
    assert gpu(nvml, "MIG-b, 9, 0").read().busy_ratio == 0.7


@pytest.mark.parametrize("visible", ["", " ", ","])
def test_no_visible_device_is_no_reading(visible: str):
    assert gpu(FakeNvml({"load": 10}), visible).read() is None


def test_sm_activity_is_taken_where_gpm_is_supported():
    nvml = FakeNvml({"load": 100, "activity": 30.0}, gpm=True)
    probe = gpu(nvml)
    assert [probe.read().busy_ratio for _ in range(2)] == [1.0, 0.3]


def test_a_mig_device_without_gpm_has_no_load():
    assert gpu(FakeNvml({"uuid": "MIG-x"}), "MIG-x").read() is None


def test_nvml_that_dies_is_shut_down_and_begun_anew():
    nvml = FakeNvml({"load": 50})
    probe = gpu(nvml)
    assert probe.read() is not None
    nvml.dead = NVMLError("GPU is lost")
    for _ in range(2):
        with pytest.raises(ValueError, match="NVML"):
            probe.read()
    assert nvml.started == 0
    nvml.dead = None
    assert probe.read() is not None


def test_a_machine_without_nvml_is_no_error_of_the_loader():
    watched = Watched(GpuProbe(None, 1).read, "GPU", ManualClock().now_s)
    watched.read()
