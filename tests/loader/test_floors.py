"""A floor so small that its unit was left out is refused wherever a floor is written."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from doubles import profile_of
from rlds_files import once, png, write_steps
from streams import spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.controller.profile import Profile
from autoloader.errors import ProfileError, UsageError
from autoloader.host.units import LEAST_FLOOR_BYTES
from autoloader.process.child import Child
from autoloader.process.planning import plan_loader

TOO_SMALL: list[Any] = [5, "5", "5 ", "5MB", 5.0, "0.5", "0.4kB", 63 * 2**20, LEAST_FLOOR_BYTES - 1]
COMMANDS = [
    *([name, "--ram-floor"] for name in ("plan", "measure", "tune", "verify", "peek", "doctor")),
    *([name, "--disk-floor"] for name in ("plan", "measure", "index")),
]
PROFILE = """\
schema_version: 2
name: box
host: {cpus: 8, memory_bytes: 62.5GiB}
limits: {ram_floor: FLOOR}
provenance: {source: reasoned, detail: made up for a test}
"""


spec = once(lambda folder: spec_of(write_steps(folder, [[8] * 4], encode=png)))


def with_data_module(spec: PipelineSpec, **floor: Any) -> object:
    from autoloader.lightning import AutoLoaderDataModule

    return AutoLoaderDataModule(spec, **floor)


CALLS: dict[str, Callable[..., object]] = {
    "AutoLoader": AutoLoader,
    "AutoLoaderDataModule": with_data_module,
    "plan_loader": plan_loader,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("floor", ["ram_floor", "disk_floor"])
@pytest.mark.parametrize("value", TOO_SMALL, ids=repr)
def test_a_floor_without_its_unit_is_refused_by_every_call(
    call: str, floor: str, value: Any, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Child, "shared", lambda *_, **__: pytest.fail("a child was started"))
    with pytest.raises(UsageError) as caught:
        CALLS[call](spec, **{floor: value})
    assert floor in caught.value.what
    assert "did you mean" in caught.value.remedy


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_floor_without_its_unit_is_refused_by_every_command(command: list[str], cli: Cli):
    with_spec = ["--spec", "mix.yaml"] if command[0] != "doctor" else []
    error = cli.json(*command, "5", *with_spec, code=2)["error"]
    assert error["kind"] == "UsageError"
    assert command[1] in error["what"]
    assert "did you mean 5GB?" in error["remedy"]


@pytest.mark.parametrize("value", ["5", "'5'", "5MB", "true", "67108863"])
def test_a_floor_without_its_unit_is_refused_in_a_profile(value: str):
    with pytest.raises(ProfileError) as caught:
        profile_of(PROFILE.replace("FLOOR", value))
    assert caught.value.exit_code == 2
    assert "limits.ram_floor" in caught.value.what


def test_a_disk_floor_without_its_unit_is_refused_in_the_environment(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "50")
    with pytest.raises(UsageError, match="AUTOLOADER_DISK_FLOOR") as caught:
        plan_loader(spec)
    assert "did you mean 50GB?" in caught.value.remedy


@pytest.mark.parametrize(
    ("floor", "told"),
    [({"ram_floor": 0}, "ram_floor is 0"), ({"disk_floor": "0"}, "disk_floor is 0")],
)
def test_a_floor_of_0_is_switched_off_with_one_warning(
    floor: dict[str, Any], told: str, spec: PipelineSpec, caplog: pytest.LogCaptureFixture
):
    options: dict[str, Any] = {"ram_floor": "64MiB", **floor}
    with (
        caplog.at_level(logging.WARNING),
        AutoLoader(spec, isolation="thread", output="numpy", **options) as loader,
    ):
        next(iter(loader))
    assert sum(told in line for line in caplog.messages) == 1


def test_a_floor_of_0_in_a_profile_is_told_once(
    spec: PipelineSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "box.yaml"
    file.write_text(PROFILE.replace("FLOOR", "0"))
    with caplog.at_level(logging.WARNING):
        assert plan_loader(spec, profile=file).ram_floor_bytes == 0
    assert sum("ram_floor is 0" in line for line in caplog.messages) == 1


def test_sizes_that_are_no_floors_stay_small(spec: PipelineSpec, tmp_path: Path):
    plan = plan_loader(spec, ram_floor="64MiB", knobs={"cache_bytes": 0})
    assert plan.knobs.cache_bytes == 0
    file = tmp_path / "box.yaml"
    file.write_text(PROFILE.replace("FLOOR", "5GB") + "cache: {disk: /frames, bytes: 5}\n")
    assert Profile.from_yaml(file).cache.bytes == 5
