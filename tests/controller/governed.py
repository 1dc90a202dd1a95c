"""Parts of a loader under control that tests drive by hand; with isolation="thread" alone."""

import contextlib
import threading
from collections.abc import Iterator

from autoloader import AutoLoader
from autoloader.controller.reflex import ControlLoop
from autoloader.process.child import ThreadChild
from autoloader.process.control import ControlledPipeline
from autoloader.spec.knobs import Knobs


def service_of(loader: AutoLoader) -> ThreadChild:
    """The service of a loader with isolation="thread", once it has heeded what it was told."""
    loader.statistics()
    child = loader._child
    assert isinstance(child, ThreadChild)
    return child


def loop_of(loader: AutoLoader) -> ControlLoop:
    return service_of(loader).service.control.loop


def controlled_of(loader: AutoLoader) -> ControlledPipeline:
    (served,) = service_of(loader).service.served.values()
    return served


def knobs_of(loader: AutoLoader) -> Knobs:
    """Knobs in force, once the loader has read what its service said of them and of its state.

    The service says it where that does not wait, or else with what it says next.
    """
    controlled = controlled_of(loader)
    while (loader.knobs.flat(), loader.statistics().state) != (
        controlled.pipeline.knobs.flat(),
        controlled._state.name.value,
    ):
        controlled._wire.send_waiting()
    return loader.knobs


@contextlib.contextmanager
def reacting(loop: ControlLoop) -> Iterator[None]:
    """The reflex looks again and again meanwhile, as its own thread would.

    One look may take batches for ready whose release is still on its way, and close the gate until
    the next look.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.01):
            loop.react_once()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
