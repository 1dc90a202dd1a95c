"""Regressions that tests plant in a copy of the loader, each in one module of it."""

from typing import Any


def extra_copy(line: Any) -> None:
    """A batch's pictures are copied once more before it is handed out."""
    plain = line.BatchBuilder.next

    def copying(self: Any, timeout_s: float) -> Any:
        batch = plain(self, timeout_s)
        if batch is not None:
            views = self._layout.views(self._memory.base(batch.slot))
            for name, view in views.items():
                if name.startswith("images/"):
                    view[:] = view.copy()
        return batch

    line.BatchBuilder.next = copying


def lost_thread(pool: Any) -> None:
    """The decode pool works with a thread less than its knob says."""
    plain = pool.DecodePool.resize
    pool.DecodePool.resize = lambda self, threads: plain(
        self, {stage: max(0, most - 1) for stage, most in threads.items()}
    )


def leaked_frame(line: Any) -> None:
    """One decoded frame of every batch is kept for ever."""
    plain, kept = line.BatchBuilder.next, []

    def keeping(self: Any, timeout_s: float) -> Any:
        batch = plain(self, timeout_s)
        if batch is not None:
            views = self._layout.views(self._memory.base(batch.slot))
            kept.append(next(v for n, v in views.items() if n.startswith("images/"))[0, 0].copy())
        return batch

    line.BatchBuilder.next = keeping


PLANTS = {
    "extra_copy": "decode/batch_builder.py",
    "lost_thread": "decode/jobs.py",
    "leaked_frame": "decode/batch_builder.py",
}
"""By regression: the file whose module it changes."""
