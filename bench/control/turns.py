"""Fixed knobs in turn, over one running loader; and pairs of the controlled loader and the best.

Theory of operation. ``search`` moves one loader, whose controller is off, from setting to setting
by ``retune``: what settles is thrown away, then a window counts. The best two are measured again
with a longer window, so that a lucky short one does not win. A setting during which headroom fell
below the floor is no setting that may be run, and does not count. Where the trainer validates, it
does so here, too, with a second loader whose controller is off. ``paired`` has two loaders in one
child take turns, the controlled one and one that holds the best static knobs; the one that waits is
parked, as a validation loader would be, and has filled its ring before the other's turn begins: 64
slots are three seconds of work that the other would pay for.

Not here: which settings (``bench.control.static``), what follows (``judge``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bench.control.memory import headroom_bytes
from bench.control.trainer import Orders, endless, open_loader, validate


def run(job: Mapping[str, Any], orders: Orders, say: Any) -> dict[str, Any]:
    """What ``job["turns"]`` asks: ``search`` or ``paired``."""
    return search(job, orders, say) if job["turns"] == "search" else paired(job, orders, say)


def search(job: Mapping[str, Any], orders: Orders, say: Any) -> dict[str, Any]:
    """Measure every one of ``job["settings"]``, the best two again; see the module."""
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        loader = stack.enter_context(open_loader(job, controller=False))
        stream = endless(loader)
        if job["validate_every"]:
            aside = stack.enter_context(open_loader(job, controller=False, split="val"))
            stream = _validating(stream, aside, job, orders)
        _turn(stream, job["warm_s"], orders, job)
        say({"first": time.monotonic()})
        orders.going.wait()  # the conditions come about first
        for setting in job["settings"]:
            if orders.stopped.is_set():
                break
            found.append(_setting(job, loader, stream, setting, job["window_s"], orders))
        legal = [one for one in found if "wait_ratio" in one and one["held_floor"]]
        best = sorted(legal, key=lambda one: (one["wait_a_batch_s"], -one["samples_per_s"]))[:2]
        finals = [
            _setting(job, loader, stream, one["knobs"], 2 * job["window_s"], orders) for one in best
        ]
    return {"settings": found, "finals": finals}


def _validating(
    stream: Iterator[Any], aside: Any, job: Mapping[str, Any], orders: Orders
) -> Iterator[Any]:
    """Training batches; between two of them, every so often, a validation.

    It is asked for right before a batch, and so would count as waiting: its time is given back by
    beginning the asking anew (``None`` stands for it).
    """
    for number, batch in enumerate(stream, start=1):
        yield batch
        del batch
        if number % job["validate_every"] == 0:
            validate(aside, job["validate_batches"], orders)
            yield None


def _setting(
    job: Mapping[str, Any],
    loader: Any,
    stream: Iterator[Any],
    setting: Mapping[str, int],
    window_s: float,
    orders: Orders,
) -> dict[str, Any]:
    from autoloader.errors import KnobError

    try:
        loader.retune(**setting)
    except KnobError as error:
        return {"knobs": dict(setting), "refused": str(error)}
    _turn(stream, job["settle_s"], orders, job)
    return {"knobs": dict(setting), **_turn(stream, window_s, orders, job)}


def paired(job: Mapping[str, Any], orders: Orders, say: Any) -> dict[str, Any]:
    """The controlled loader and the best static knobs in turn; what each turn was like."""
    with open_loader(job, controller=True) as mine:
        ours = endless(mine)
        next(ours)
        say({"first": time.monotonic()})
        _turn(ours, job["climb_s"], orders, job)
        held = {**job, "knobs": job["best"]}
        with open_loader(held, controller=False) as other:
            theirs = endless(other)
            _turn(theirs, 2.0, orders, job)
            pairs: list[dict[str, Any]] = []
            for number in range(job["pairs"]):
                if orders.stopped.is_set():
                    break
                turns = [("controlled", ours, other), ("static", theirs, mine)]
                pair = {}
                for name, stream, waits in turns if number % 2 == 0 else reversed(turns):
                    _rested(waits, orders)
                    _turn(stream, job["settle_s"], orders, job)  # what the ring has kept is eaten
                    pair[name] = _turn(stream, job["window_s"], orders, job)
                pairs.append(pair)
    return {"pairs": pairs}


def _rested(loader: Any, orders: Orders, *, most_s: float = 15.0) -> None:
    """Wait until a loader from which nobody takes has stopped filling its ring."""
    ends, filled = time.monotonic() + most_s, -1
    while time.monotonic() < ends and not orders.stopped.is_set():
        before, filled = filled, loader.statistics().ring.filled
        if filled == before:
            return
        time.sleep(0.5)


def _turn(
    stream: Iterator[Any], seconds: float, orders: Orders, job: Mapping[str, Any]
) -> dict[str, Any]:
    """Take batches for so long: how fast they came, and what was waited."""
    began = last = time.monotonic()
    waits: list[float] = []
    samples, lowest = 0, float("inf")
    while last - began < seconds and not orders.stopped.is_set():
        asked = time.monotonic()
        batch = next(stream)
        if batch is None:
            continue
        got = time.monotonic()
        waits.append(got - asked)
        samples += len(batch["dataset_index"])
        del batch
        lowest = min(lowest, headroom_bytes(job["group"]))
        orders.compute(got)
        last = time.monotonic()
    span = max(1e-9, last - began)
    return {
        "wait_ratio": sum(waits) / span,
        "wait_a_batch_s": sum(waits) / max(1, len(waits)),
        "samples_per_s": samples / span,
        "held_floor": lowest >= job["ram_floor_bytes"],
        "least_headroom_bytes": lowest,
    }
