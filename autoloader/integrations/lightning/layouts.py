"""Batches in the layout of trainers that were written for another loader.

A layout is a callable ``(batch, dataset_names) -> anything``, the data module's ``to_batch``. It
runs once per batch on the host, before the move to the device, so it should only rearrange:
``permute`` and slices are views and cost nothing; the move keeps them one block. What computes on
pixels belongs behind the move, in the module's ``on_after_batch_transfer``.

Not here: when it is called (``streams``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoloader.batch import Batch
from autoloader.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Stage2Layout:
    """Batch as Stage-2 trainers of vision-language-action models expect it.

    Needs ``metadata: full``. A batch is a dict:

    - ``frames``: ``[B, 3, T, H, W] uint8``, a view of one camera;
    - ``language``: list of B str;
    - ``action``: ``[B, A] float32`` where the horizon is 1, else ``[B, horizon, A]``;
    - ``state``: ``[B, S]`` or ``[B, Fs, S] float32``;
    - ``dataset_name``: list of B str;
    - ``episode_id``: list of B str, the same for all samples of one episode, in every pass;
    - ``frame_idx``: ``[B] int64``, t of the sample in its (strided) episode;
    - the other keys of the loader's batch, as they are.

    Args:
        camera: which camera the frames are of; ``None`` takes the only or first one.
    """

    camera: str | None = None

    def __call__(self, batch: Batch, dataset_names: Sequence[str]) -> dict[str, Any]:
        """The batch, rearranged; frames and numbers are views of it.

        Raises:
            UsageError: the camera or the metadata is not in the batch.
        """
        images = batch["images"]
        camera = self.camera if self.camera is not None else next(iter(images))
        if camera not in images:
            raise UsageError(
                f"Stage2Layout(camera={camera!r}): the mixture has no such camera",
                remedy=nearest(camera, images),
            )
        if "provenance" not in batch:
            raise UsageError(
                "Stage2Layout needs to know where samples come from; the spec says metadata: "
                + ("dataset_only" if "dataset_index" in batch else "none"),
                remedy="write metadata: full in the spec",
            )
        places = batch["provenance"].tolist()
        kept = {key: value for key, value in batch.items() if key != "images"}
        return {
            **kept,
            "frames": images[camera].permute(0, 4, 1, 2, 3),
            "action": _without_horizon(batch["action"]),
            "state": _without_horizon(batch["state"]),
            "dataset_name": [dataset_names[place[0]] for place in places],
            "episode_id": [f"{dataset_names[d]}/{shard}/{e}" for d, _, shard, e, _ in places],
            "frame_idx": batch["provenance"][:, 4],
        }


def _without_horizon(rows: Any) -> Any:
    return rows[:, 0] if rows.shape[1] == 1 else rows
