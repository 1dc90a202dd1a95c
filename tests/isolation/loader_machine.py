"""A loader under everything that may befall it, its rows held against what lies on disk.

A Hypothesis state machine drives the loaders of one or two ranks: reading, holding batches, forks
that use the loaders or leave them, kills and stops of the child and of decode processes, retunes,
suspensions, states saved and loaded, closing with ``close`` and with ``del``. Two things hold at
every step: a row holds the sample that its provenance names (``coded_rows``), and each sample of a
pass comes exactly once, over all ranks and over whatever came between.

Not here: which machines are run, and for how long (``machines``).
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "loader"))

from coded_rows import CodedRows, coded_spec
from forked import ENDS, USES, Fork, Opened, arrays, changed, fork
from leftovers import ends_within
from passes import Passes
from strikes import LineStriker, StruckError

from autoloader import AutoLoader, join_states

FOUND_S = 60.0
"""Within 30 s a stopped process is found; as long again for its replacement on a busy machine."""
PAUSE_S = 0.3
BATCHES = st.integers(0, 40)
RANKS = st.integers(0, 1)
OF_STREAM = (
    "cycle_length", "parse_parallel_calls", "stream_prefetch", "queue_samples", "shuffle_samples",
)  # fmt: skip


@dataclass
class Tally:
    """What was counted over machines.

    Attributes:
        rows, wrong: rows compared, and those that were not what their provenance names.
        missing, twice: samples of a pass that is over that never came, and that came again.
        events: how often what was done.
    """

    rows: int = 0
    wrong: int = 0
    missing: int = 0
    twice: int = 0
    events: collections.Counter[str] = field(default_factory=collections.Counter)

    def __str__(self) -> str:
        counted = f"rows {self.rows:,}  wrong {self.wrong}  missing {self.missing}"
        done = (f"{name} {count}" for name, count in sorted(self.events.items()))
        return f"{counted}  twice {self.twice}\n" + ", ".join(done)


class FoundError(BaseException):
    """A machine failed; Hypothesis lets it through, and does not try to repeat what need not be."""


def step(kind: Callable[..., Any] = rule, **strategies: Any) -> Callable[..., Any]:
    """A rule that is noted in ``steps``, with what was drawn for it."""

    def wrap(act: Callable[..., None]) -> Any:
        @functools.wraps(act)
        def noted(self: LoaderMachine, **drawn: Any) -> None:
            said = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            self.steps.append(f"{act.__name__}({said})")
            try:
                act(self, **drawn)
            except Exception as error:
                self.failed = True
                raise FoundError("\n".join(self.steps)) from error

        return kind(**strategies)(noted)

    return wrap


class LoaderMachine(RuleBasedStateMachine):
    """Drives the loaders of all ranks of a run, in this process.

    Attributes:
        reader, world_sizes: what it is about; a resumed run may have another world size.
        times: how many times as many batches are read as are drawn.
        may_stop: whether a process may be stopped for good, which takes half a minute to be found.
    """

    rows: ClassVar[CodedRows]
    tally: ClassVar[Tally]
    reader: ClassVar[str] = "indexed"
    world_sizes: ClassVar[tuple[int, ...]] = (1, 2)
    times: ClassVar[int] = 1
    may_stop: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.loaders: list[AutoLoader] = []
        self.iterations: list[Iterator[dict[str, Any]]] = []
        self.held: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.forks: list[Fork] = []
        self.hold_next = False
        self.lines: list[int] = []
        self.kills = 0
        self.longest_s = 0.0
        self.steps: list[str] = []
        self.failed = False

    @step(
        initialize,
        ranks=RANKS,
        drop_last=st.booleans(),
        pass_epochs=st.booleans(),
        batch=st.sampled_from([16, 48, 96]),
        output=st.sampled_from(["numpy", "torch"]),
        processes=st.integers(1, 3),
        controller=st.booleans(),
    )
    def begin(
        self,
        ranks: int,
        drop_last: bool,
        pass_epochs: bool,
        batch: int,
        output: str,
        processes: int,
        controller: bool,
    ) -> None:
        top: dict[str, Any] = (
            {"weights": "natural"} if pass_epochs else {"mixing": {"epoch": len(self.rows) // 2}}
        )
        top["batch"] = {"size": batch, "drop_last": drop_last}
        self.spec = coded_spec(self.rows.written, reader=self.reader, **top)
        self.arguments: dict[str, Any] = {
            "output": output,
            "ram_floor": "200MB",
            "controller": controller,
            "knobs": {"ring_slots": 6, "queue_samples": 16},
        }
        if self.reader == "indexed":
            self.arguments["knobs"]["decode_processes"] = min(
                processes, len(os.sched_getaffinity(0))
            )
        self._open(ranks)
        self.passes = Passes(self.loaders[0])
        self.passes.resume(len(self.loaders))
        assert list(self.passes.sizes.values()) == self.rows.sizes
        self.saved = self._state(), copy.deepcopy(self.passes)

    def _open(self, ranks: int, state: str | None = None) -> None:
        world_size = self.world_sizes[ranks % len(self.world_sizes)]
        self.loaders = [
            AutoLoader(self.spec, rank=rank, world_size=world_size, **self.arguments)
            for rank in range(world_size)
        ]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(state))
        self.iterations = [iter(loader) for loader in self.loaders]
        self.tally.events["loaders opened"] += world_size

    def _go_on_from(self, passes: Passes) -> None:
        self.passes = copy.deepcopy(passes)
        self.passes.resume(len(self.loaders))

    def _read(self, steps: int) -> None:
        """Steps of all ranks, each held against what it must be."""
        for _ in range(self.times * steps):
            began = time.monotonic()
            batches = [self._next(iteration) for iteration in self.iterations]
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if None in batches:  # the epoch is over, for all at once
                assert batches == [None] * len(batches)
                self.iterations = [iter(loader) for loader in self.loaders]
                continue
            for rank, batch in enumerate(batches):
                assert batch is not None
                self._compare(rank, batch, self.passes)
            self.kills = 0
            if faults := self.passes.faults():
                self.tally.missing += self.passes.missing
                self.tally.twice += self.passes.twice
                raise AssertionError(f"{len(faults)} faults: {faults[:5]}")

    def _next(self, iteration: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """A batch; ``None`` at the end. It is asked for again where the first call was struck."""
        if self.lines:
            with contextlib.suppress(StruckError), LineStriker(self.lines.pop()):
                return next(iteration, None)
            self.tally.events["lines struck"] += 1
        return next(iteration, None)

    def _compare(self, rank: int, batch: dict[str, Any], passes: Passes) -> None:
        wrong = self.rows.wrong(batch)
        self.tally.rows += len(wrong)
        self.tally.wrong += int(wrong.sum())
        assert not wrong.any(), f"wrong rows: {np.asarray(batch['provenance'])[wrong].tolist()}"
        passes.note(batch, rank)
        if self.hold_next:
            self.hold_next = False
            self.held.append((batch, {key: np.asarray(part).copy() for key, part in arrays(batch)}))
            self.tally.events["batches held"] += 1

    def _look_at_held(self) -> None:
        faults = changed(self.held)
        self.tally.wrong += len(faults)
        assert not faults, faults

    def _state(self) -> str:
        return json.dumps(join_states([loader.state_dict() for loader in self.loaders]))

    @step(batches=st.integers(1, 120), hold=st.booleans(), anew=st.booleans())
    def read(self, batches: int, hold: bool, anew: bool) -> None:
        self.hold_next = hold and len(self.held) < 4
        if anew:
            self.iterations = [iter(loader) for loader in self.loaders]
        self._read(batches)
        self._look_at_held()

    @step()
    def let_go_of_batches(self) -> None:
        self._look_at_held()
        self.held.clear()

    @step(
        uses=st.lists(st.sampled_from(sorted(USES)), max_size=3),
        end=st.sampled_from(sorted(ENDS)),
        meanwhile=BATCHES,
        after=BATCHES,
    )
    def fork(self, uses: list[str], end: str, meanwhile: int, after: int) -> None:
        state = json.loads(self.saved[0])
        opened = Opened(self.loaders, self.iterations, state, self.held)
        self.forks.append(fork(opened, uses, end))
        del opened
        self.tally.events["forks"] += 1
        for use in uses:
            self.tally.events[f"fork uses {use}"] += 1
        self.tally.events[f"fork ends by {end}"] += 1
        self._read(meanwhile)
        if end != "linger":
            self._wait_for_forks()
        self._read(after)
        self._look_at_held()

    def _wait_for_forks(self) -> None:
        while self.forks:
            faults = self.forks.pop().faults()
            self.tally.events["forks that went wrong"] += bool(faults)
            assert not faults, f"in the fork: {faults}"

    @precondition(lambda self: self.kills < 2)
    @step(which=st.integers(0, 3), after=BATCHES)
    def kill(self, which: int, after: int) -> None:
        """Kill the child, or a decode process where there are some."""
        self.kills += 1
        self._signal(which, signal.SIGKILL, "kills")
        self._read(after)

    @step(which=st.integers(0, 3), after=BATCHES)
    def stop_for_a_moment(self, which: int, after: int) -> None:
        pid = self._signal(which, signal.SIGSTOP, "stops for a moment")
        going_on = threading.Timer(PAUSE_S, _send, (pid, signal.SIGCONT))
        going_on.start()
        self._read(after)
        going_on.join()

    @precondition(lambda self: self.may_stop)
    @step(which=st.integers(0, 3))
    def stop(self, which: int) -> None:
        self._signal(which, signal.SIGSTOP, "stops")
        self.longest_s = 0.0
        self._read(self.loaders[0].knobs.ring_slots * 4)
        assert self.longest_s < FOUND_S, f"a step took {self.longest_s:.0f} s"

    def _signal(self, which: int, number: signal.Signals, event: str) -> int:
        pids = self.loaders[-1].statistics().worker_pids
        pid = pids[which % len(pids)]
        self.tally.events[f"{event}: {'decode process' if pid != pids[0] else 'child'}"] += 1
        _send(pid, number)
        return pid

    @step(
        cycle_length=st.integers(1, 3),
        parse_parallel_calls=st.integers(1, 2),
        stream_prefetch=st.integers(0, 2),
        queue_samples=st.sampled_from([1, 16, 64]),
        shuffle_samples=st.sampled_from([0, 24]),
        decode_threads=st.integers(1, 3),
        decode_processes=st.integers(1, 3),
        io_threads=st.integers(1, 4),
        read_ahead=st.integers(1, 3),
        ring_slots=st.integers(4, 10),
        after=BATCHES,
    )
    def retune(self, after: int, **drawn: int) -> None:
        own = {
            name: drawn[name]
            for name in ("decode_threads", "ring_slots", "io_threads", "read_ahead")
        }
        if self.reader == "indexed":
            cpus = self.loaders[0].plan.limits.cpus
            own["decode_processes"] = min(drawn["decode_processes"], cpus)
        else:
            own |= {name: drawn[name] for name in OF_STREAM}
            own["num_parallel_calls"] = drawn["cycle_length"]
        for loader in self.loaders:
            loader.retune(**own)
        self.tally.events["retunes"] += 1
        self._read(after)

    @step(lines=st.lists(st.integers(1, 60), min_size=1, max_size=20), after=BATCHES)
    def strike(self, lines: list[int], after: int) -> None:
        """Raise at a line of the library in each of the next calls of ``next``; then read on."""
        self.lines = lines.copy()
        self._read(after)
        self.lines = []

    @step(how=st.sampled_from(["park", "suspend", "prepare"]), after=BATCHES)
    def rest(self, how: str, after: int) -> None:
        for loader in self.loaders:
            getattr(loader, how)()
            if how == "park":
                loader.park(False)
        self.tally.events[how] += 1
        self._read(after)

    @step()
    def look(self) -> None:
        for loader in self.loaders:
            loader.statistics().as_dict()

    @step()
    def save(self) -> None:
        self.saved = self._state(), copy.deepcopy(self.passes)
        self.tally.events["states saved"] += 1

    @step(after=BATCHES)
    def load(self, after: int) -> None:
        state, passes = self.saved
        for loader in self.loaders:
            loader.load_state_dict(json.loads(state))
        self.iterations = [iter(loader) for loader in self.loaders]
        self._go_on_from(passes)
        self.tally.events["states loaded"] += 1
        self._read(after)

    @step(
        ranks=RANKS,
        how=st.sampled_from(["close", "del", "close after"]),
        last=st.booleans(),
        after=BATCHES,
    )
    def reopen(self, ranks: int, how: str, last: bool, after: int) -> None:
        """Other loaders go on, from here or from the last state that was saved."""
        if not last:
            self.saved = self._state(), copy.deepcopy(self.passes)
        state, passes = self.saved
        before = self.loaders
        if how == "close":
            self._close(before)
        elif how == "del":
            del before
            self._delete()
        self._open(ranks, state)
        if how == "close after":
            self._close(before)
        self._go_on_from(passes)
        self.tally.events[f"reopened, old ones: {how}"] += 1
        self._read(after)
        self._look_at_held()

    @step(batches=st.integers(1, 6), after=BATCHES)
    def validate(self, batches: int, after: int) -> None:
        """Another loader of the same child comes, is read and goes."""
        with AutoLoader(self.spec, **self.arguments) as other:
            passes = Passes(other)
            for _, batch in zip(range(batches), other, strict=False):
                self._compare(0, batch, passes)
            del batch
            assert passes.faults() == []
        self.tally.events["validations"] += 1
        self._read(after)

    def _close(self, loaders: list[AutoLoader]) -> None:
        for loader in loaders:
            loader.close()
        loaders.clear()

    def _delete(self) -> None:
        """Forget the loaders without closing them: they and their processes must go."""
        pids = self.loaders[0].statistics().worker_pids
        watched = [weakref.ref(loader) for loader in self.loaders]
        self.iterations.clear()
        gc.disable()
        try:
            self.loaders.clear()
            alive = sum(one() is not None for one in watched)
        finally:
            gc.enable()
        assert not alive, f"{alive} of {len(watched)} loaders are alive, and nobody has them"
        assert all(ends_within(pid, FOUND_S) for pid in pids)

    def teardown(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.held.clear)
            if not self.failed:
                stack.callback(self._look_at_held)
            stack.callback(lambda: self._close(self.loaders))
            if not self.failed:
                stack.callback(self._wait_for_forks)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # ended just before
        os.kill(pid, number)
