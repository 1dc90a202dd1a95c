"""Calls the user's function over each finished batch (``batch.call``), in the loader's process.

Theory of operation. The function sees the batch as a consumer with ``output="numpy"`` does: arrays
over the slot, which it may not write to. Its result is compared with the spec (``batch.gives``) and
copied into the slot, whose layout has room for it. From there on the result is a part of the batch.
Texts travel beside the slot. It is called once for each batch that is
handed out, in order, on the thread that hands batches out. It runs ahead of the consumer by as many
batches as the ring holds. A batch that is made again, after the child was lost, is given to it
again.

Not here: finding and importing functions (``samples.transforms.transform``).
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoloader.decode.message import BatchMessage, assemble
from autoloader.errors import PipelineError, many, shown
from autoloader.samples.layout import CALLED
from autoloader.samples.resolve import REMEDY_OF_CHANGES, ResolvedMixture
from autoloader.samples.transforms.rlds import FunctionFailedError
from autoloader.samples.transforms.transform import call_here, function_identity, imported_identity
from autoloader.spec import BatchSpec, TransformSpec


def call_identity(batch: BatchSpec) -> str:
    """Hash of the function of a spec, "" without one; imports nothing of it.

    Raises:
        SpecError: the function cannot be found, or ``--no-transforms`` runs none.
    """
    if batch.call is None:
        return ""
    return function_identity(_as_transform(batch), field="batch.call")


def _as_transform(batch: BatchSpec) -> TransformSpec:
    return TransformSpec.model_validate({"call": batch.call, "kwargs": dict(batch.kwargs)})


_TRIES = 3


def try_call(mixture: ResolvedMixture) -> tuple[float | None, str | None]:
    """(seconds of the function, ``None``) for a full batch of zeros and empty texts.

    Where the function fails: (``None``, the reason). The least of a few calls counts, as the first
    may build things that the others use.
    """
    layout = mixture.layout
    views = layout.views(np.zeros(layout.slot_bytes, np.uint8))
    call, seconds = BatchCall(mixture), []
    for _ in range(_TRIES):
        before = call.seconds
        try:
            call.complete(views, BatchMessage(0, layout.batch_size, 0))
        except PipelineError as error:
            return None, error.what
        seconds.append(call.seconds - before)
    return min(seconds), None


class BatchCall:
    """The function of one mixture; for one thread.

    Args:
        mixture: the resolved mixture, of which ``batch.call`` is called.

    Attributes:
        calls: number of batches so far.
        seconds: seconds spent in the function.
    """

    def __init__(self, mixture: ResolvedMixture) -> None:
        self._mixture = mixture
        self._batch = mixture.spec.batch
        self._spec = _as_transform(self._batch)
        self.calls = 0
        self.seconds = 0.0

    def complete(self, views: Mapping[str, np.ndarray], filled: BatchMessage) -> None:
        """Call the function over a filled batch, and put what it gives into the batch.

        Args:
            views: over the batch's slot; of this call alone.
            filled: message of the filled batch.

        Raises:
            PipelineError: the function raised, or gave something else than the spec says.
        """
        shown_views = {name: view for name, view in views.items() if not name.startswith(CALLED)}
        for view in shown_views.values():
            view.flags.writeable = False
        batch = assemble(self._mixture, shown_views, filled, np.asarray)
        began = time.perf_counter()
        try:
            found = call_here(self._spec, dict(batch), filled.rows)
        except FunctionFailedError as error:
            raise self._wrong(str(error), "fix the function, or remove batch.call") from error
        if not self.calls and self._mixture.call not in ("", imported_identity(self._spec)):
            raise self._wrong(
                f"the code of {self._batch.call} was changed after the loader began: batches of "
                "old and new code would mix",
                REMEDY_OF_CHANGES,
            )
        self.seconds += time.perf_counter() - began
        self.calls += 1
        self._put(found, views, filled)

    def check_let_go(self, memory: weakref.ref[np.ndarray]) -> None:
        """Check, behind ``complete``, that the function keeps no array over the batch's slot.

        Raises:
            PipelineError: it does.
        """
        if memory() is not None:
            gc.collect()  # it may lie in a cycle of the function's
            if memory() is not None:
                raise self._wrong(
                    f"{self._batch.call} keeps an array of the batch, and later batches use its "
                    "memory",
                    "copy what the function keeps: numpy.array(…)",
                )

    def _put(self, found: Any, views: Mapping[str, np.ndarray], filled: BatchMessage) -> None:
        gives, call = self._batch.gives, self._batch.call
        if not isinstance(found, Mapping) or set(found) != set(gives):
            given = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise self._wrong(
                f"{call} gave {shown(given)}, and batch.gives names {shown(sorted(gives))}",
                "return a dict with the names of batch.gives, or change batch.gives",
            )
        for name, wanted in gives.items():
            value = found[name]
            if wanted.dtype == "text":
                texts = value.tolist() if isinstance(value, np.ndarray) else value
                listed = isinstance(texts, (list, tuple)) and len(texts) == filled.rows
                if not listed or not all(isinstance(text, str) for text in texts):
                    raise self._wrong(
                        f"{call} gave {shown(value)} for {name!r}, and batch.gives says dtype: "
                        "text",
                        f"return a list of {filled.rows} texts",
                    )
                filled.called[name] = list(texts)
                continue
            try:
                array = np.asarray(value)
            except Exception as error:  # whatever a tensor of the user's raises
                raise self._wrong(
                    f"{call} gave {shown(value)} for {name!r}, of which NumPy makes no array: "
                    f"{error}",
                    f"return an array of {many(filled.rows, 'row')}, all of one shape",
                ) from error
            shape = (filled.rows, *wanted.shape)
            if array.shape != shape or not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
                raise self._wrong(
                    f"{call} gave {array.dtype} {list(array.shape)} for {name!r}, and batch.gives "
                    f"says {wanted.dtype} {list(shape)}",
                    "change batch.gives, or what the function returns; the last batch of an epoch "
                    "may have fewer rows",
                )
            stored = views[f"{CALLED}{name}"][: filled.rows]
            stored[...] = array
            if array.dtype.kind in "iu" and stored.dtype.kind in "iu" and (stored != array).any():
                raise self._wrong(
                    f"{call} gave numbers for {name!r} that {wanted.dtype} cannot hold",
                    "change batch.gives, or what the function returns",
                )

    def _wrong(self, what: str, remedy: str) -> PipelineError:
        return PipelineError(f"batch.call: {what}", remedy=remedy, stage="call")
