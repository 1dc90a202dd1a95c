"""``autoloader top``: what a running loader does, why, and what limits it.

It reads what the loader writes anyway, and asks it nothing: no lock, no message, no signal.

Not here: finding runs (``telemetry.runtime``), drawing one (``cli.run_view``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json, emit_rendered
from autoloader.errors import UsageError, printable
from autoloader.host.units import parse_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from autoloader.telemetry.statistics import Snapshot

_NONE = "no loader of yours runs on this machine"


def top(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run to show: its name, its script, a part of either, or a process id; "
            "default: all that run."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    every: Annotated[str, typer.Option("--every", help="Time between two looks.")] = "2s",
    as_json: JsonFlag = False,
) -> None:
    """Show what your running loaders do, why, and what limits them, without disturbing them."""
    from rich.console import Console

    period_s = max(0.1, parse_seconds(every, name="--every"))
    groups = _groups(run)
    if as_json:
        emit_json({"runs": [one.as_dict() for group in groups for one in group]})
        return
    if once or not Console().is_terminal:
        if groups:
            emit_rendered(lambda console: _print(console, groups))
        else:
            emit(_NONE)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _follow(run, period_s)


def _groups(run: str | None) -> list[list[Snapshot]]:
    """The runs that are meant, each with all its loaders of this machine.

    Raises:
        UsageError: one is named, and is not there.
    """
    from autoloader.telemetry.runtime import living_runs

    groups: dict[str, list[Snapshot]] = {}
    for moment in living_runs():
        groups.setdefault(moment.node or moment.run, []).append(moment)
    if run is None:
        return list(groups.values())
    named = [group for group in groups.values() if any(_is_named(one, run) for one in group)]
    if not named:
        there = ", ".join(f"{one.run} ({one.script})" for (one, *_) in groups.values())
        raise UsageError(
            f"no loader that runs is {run!r}; there is {printable(there) or 'none'}",
            remedy="name one of these, or none to see all; those of other users and other "
            "machines are not seen",
        )
    return named


def _is_named(moment: Snapshot, run: str) -> bool:
    if run.isdecimal():
        return int(run) in (moment.trainer_pid, moment.worker_pid)
    return run in moment.run or run in moment.script


def _frame(console: Console, groups: Sequence[Sequence[Snapshot]]) -> list[Text]:
    from autoloader.cli.run_view import Frame, draw_list, draw_run

    frame = Frame.of(console.width, console.height, console.encoding)
    return draw_run(groups[0], frame) if len(groups) == 1 else draw_list(groups, frame)


def _print(console: Console, groups: Sequence[Sequence[Snapshot]]) -> None:
    for line in _frame(console, groups):
        console.print(line, soft_wrap=True)


def _follow(run: str | None, period_s: float) -> None:
    """Show frames until interrupted, or until the run that was named has ended."""
    from rich.console import Console
    from rich.control import Control
    from rich.text import Text

    console = Console()
    last: list[Text] = []
    with console.screen(hide_cursor=True):
        while True:
            try:
                groups = _groups(run)
            except UsageError:
                if not last:
                    raise
                break
            lines = _frame(console, groups) if groups else [Text(_NONE)]
            last = lines if groups else last
            with console.capture() as drawn:
                console.print(Text("\n").join(lines), end="", no_wrap=True, crop=True)
            console.control(Control.home())
            console.file.write(_over(drawn.get()))
            console.file.flush()
            time.sleep(period_s)
    for line in last:
        console.print(line, soft_wrap=True)
    console.print("the run has ended", style="bold")


def _over(drawn: str) -> str:
    """What is drawn over the frame before it, without a moment in which the screen is empty."""
    return drawn.replace("\n", "\x1b[K\n") + "\x1b[K\x1b[J"
