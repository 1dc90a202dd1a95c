"""Chooses and makes the pipeline that a mixture, its knobs and its files ask for.

Called in the loader's child, and in the trainer's process with ``isolation="thread"``; the parts
(TensorFlow among them) are imported only when they are needed.

Not here: the pipelines themselves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from autoloader.cache.disk import FramesOnDisk
from autoloader.errors import UsageError
from autoloader.order.dealing import Deal, NodePart
from autoloader.process.setup import HelperRequest, PipelineSetup
from autoloader.read.open_mixture import CompiledMixture
from autoloader.ring.message import PipelineStart

if TYPE_CHECKING:
    from autoloader.pipeline.pipeline import MixtureReader, Pipeline


def open_pipeline(setup: PipelineSetup, compiled: CompiledMixture) -> Pipeline:
    """The pipeline for a rank's part of a mixture; not yet started.

    ``compiled`` holds what earlier pipelines over the same mixture were made of, and is added to.

    Raises:
        SourceError: TensorFlow is needed and cannot be imported.
        UsageError: the place where it begins was saved under another reader.
    """
    mixture, order, start = setup.mixture, setup.order, setup.position()
    deal = Deal.of(
        order,
        mixture.spec.batch,
        setup.ranks,
        base=start.position,
        in_epoch=start.in_epoch,
        first_number=start.first_number,
    )
    room = setup.control.frames_on_disk
    disk = None if room is None else FramesOnDisk(room, mixture.layout.colour_bytes)
    reader: MixtureReader
    if setup.knobs.reader == "indexed":
        from autoloader.pipeline.indexed import IndexedReader

        _check_reader(start)
        reader = IndexedReader(
            mixture,
            order,
            ranks_here=setup.ranks_here,
            compiled=compiled,
            on_disk=room if disk else None,
            node=NodePart.of(deal, setup.ranks_here),
            helpers=_helpers(setup),
            disk_floor_bytes=setup.control.disk_floor_bytes,
        )
    else:
        from autoloader.pipeline.streamed import StreamsReader, opener

        world_size = setup.ranks.world_size
        reader = StreamsReader(mixture, order, opener(mixture, compiled), start, world_size)
    from autoloader.pipeline.pipeline import Pipeline

    with contextlib.ExitStack() as kept:
        if any(one.remote for one in mixture.datasets):
            from autoloader.remote.shards import kept_free  # local data goes without

            kept.enter_context(kept_free(setup.control.disk_floor_bytes))
        pipeline = Pipeline(
            mixture,
            reader,
            setup.knobs,
            setup.memory,
            deal=deal,
            held=sorted(setup.lent()),
            stuck=setup.stuck,
            disk=disk or None,
        )
        pipeline.at_close = kept.pop_all().close
    return pipeline


def _helpers(setup: PipelineSetup) -> HelperRequest | None:
    asked = setup.control
    return HelperRequest(asked.helpers, asked.limits.ram_floor_bytes) if asked.helpers else None


def _check_reader(start: PipelineStart) -> None:
    if start.mixer is not None and "position" not in start.mixer:
        raise UsageError(
            "the saved state is of the stream reader, this loader reads by index",
            remedy="resume with the reader that the state was saved with: reader: stream",
        )
