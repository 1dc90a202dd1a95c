"""Parts of a loader under control that tests drive by hand; with isolation="thread" alone."""

from __future__ import annotations

from autoloader import AutoLoader
from autoloader.controller.reflex import ControlLoop
from autoloader.process.control import ControlledPipeline
from autoloader.process.in_thread import ThreadChild
from autoloader.spec.knobs import Knobs


def service_of(loader: AutoLoader) -> ThreadChild:
    """The service of a loader with isolation="thread", once it has heeded what it was told."""
    loader.statistics()
    child = loader._child
    assert isinstance(child, ThreadChild)
    return child


def loop_of(loader: AutoLoader) -> ControlLoop:
    return service_of(loader).service.control._loop


def controlled_of(loader: AutoLoader) -> ControlledPipeline:
    (served,) = service_of(loader).service.served.values()
    return served.controlled


def knobs_of(loader: AutoLoader) -> Knobs:
    """Knobs in force, once the loader has read what its service said of them."""
    loader.statistics()
    return loader.knobs
