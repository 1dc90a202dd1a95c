"""A dataset's frame rate, and what offsets in seconds are in its frames.

Not here: the language (``spec.delta_timestamps``).
"""

from __future__ import annotations

from autoloader.catalog import VersionDirectory
from autoloader.errors import SpecError
from autoloader.spec import DatasetSpec, DeltaTimestamps, SampleSpec

_LARGEST_DIFFERENCE = 1e-6


def sample_in_frames(
    sample: SampleSpec, declared: DatasetSpec, directory: VersionDirectory
) -> SampleSpec:
    """``sample`` with all offsets in (strided) frames.

    Args:
        sample: the dataset's.
        declared: the dataset.
        directory: what lies on disk.

    Raises:
        SpecError: its frame rate is not known, or not what the spec says; or a time lies beside
            its frames.
    """
    fps, where = _fps(declared, directory), f"datasets[{declared.name}]"
    if not sample.delta_timestamps:
        return sample
    if fps is None:
        raise SpecError(
            f"{where}.sample.delta_timestamps: RLDS datasets do not say how many frames a second "
            "they have",
            remedy="set fps for this dataset, or write offsets in frames: frame_offsets, "
            "state_offsets, action_start and action_horizon",
            path=f"{where}.fps",
        )
    rate = fps / (declared.stride * declared.steps.every)
    found = sample.delta_timestamps.in_frames(rate, where)
    return sample.model_copy(update={**found, "delta_timestamps": DeltaTimestamps()})


def _fps(declared: DatasetSpec, directory: VersionDirectory) -> float | None:
    told = directory.fps
    if told is None:
        return declared.fps
    if declared.fps is not None and abs(declared.fps - told) > _LARGEST_DIFFERENCE * told:
        field = f"datasets[{declared.name}].fps"
        raise SpecError(
            f"{field}: {declared.fps:g}, and meta/info.json says {told:g}",
            remedy="leave fps out for a LeRobot dataset, or mend the one that is wrong",
            path=field,
        )
    return told
