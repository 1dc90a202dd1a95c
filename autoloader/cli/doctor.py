"""``autoloader doctor``: what on this machine will hurt a run.

Not here: the checks (``autoloader.cli.host_checks``).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autoloader.cli.options import (
    JsonFlag,
    NoTransforms,
    ProfileName,
    RamFloor,
    Split,
    floor_bytes,
    with_transforms,
)
from autoloader.cli.output import emit, emit_json
from autoloader.errors import UsageError

FOUND_SOMETHING = 1


def doctor(
    spec: Annotated[
        Path | None,
        typer.Option(
            "--spec", help="A mixture whose data is examined as well.", callback=with_transforms
        ),
    ] = None,
    split: Split = "train",
    profile: ProfileName = None,
    ram_floor: RamFloor = None,
    kernel_log: Annotated[
        Path | None,
        typer.Option("--kernel-log", help="A copy of the kernel's log, to read instead."),
    ] = None,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Say what on this machine will hurt a run; changes nothing. Exit code 1: something will."""
    from autoloader.cli.host_checks import KERNEL_LOG, Finding, Machine, examine

    if kernel_log is not None and not kernel_log.exists():
        raise UsageError(
            f"--kernel-log {kernel_log}: there is no such file",
            remedy="name a file that `dmesg > kernel.log` wrote, or leave the option out to have "
            f"{KERNEL_LOG} read",
        )
    # With --json stdout is a pipe to a program, whatever the training's will be.
    machine = Machine(kernel_log=kernel_log or KERNEL_LOG, stdout=None if as_json else 1)
    seen = examine(
        machine, spec=spec, split=split, profile=profile, floor_bytes=floor_bytes(ram_floor)
    )
    findings = [one for one in seen if isinstance(one, Finding)]
    facts = [one for one in seen if not isinstance(one, Finding)]
    if as_json:
        emit_json(
            {"findings": [asdict(one) for one in findings], "facts": list(map(asdict, facts))}
        )
    else:
        for one in findings:
            emit(f"{one.severity}: {one.check}: {one.evidence}\n  → {one.remedy}")
        if not findings:
            emit("nothing found that will hurt a run")
        emit("\nlooked at")
        for fact in facts:
            emit(f"  {fact.check}: {fact.text}")
    if findings:
        raise typer.Exit(FOUND_SOMETHING)
