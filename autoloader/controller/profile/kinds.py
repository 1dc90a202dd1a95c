"""Kinds of mixtures: what the best knobs of a host hang on beside the host, and how far two are.

Theory of operation. Knobs that suit 29 datasets of small JPEGs do not suit one of large PNGs. So
what was measured carries the kind of its mixture, and a loader takes the knobs of the nearest one.
Distance is counted in doublings: twice the datasets, the batch, the frames or the pixels are one
each, another encoding is two. What one of the two kinds does not say is left out of account.

Not here: reading a mixture's kind off its metadata (``process.planning.start``), profiles
(``model``).
"""

from __future__ import annotations

import math

from pydantic import Field

from autoloader.controller.profile.facts import ProfilePart

ENCODING_DOUBLINGS = 2.0
FAR_DOUBLINGS = 3.0
"""A kind at least so far is another kind of mixture: its knobs are no default."""

_COUNTS = ("datasets", "batch", "frames", "pixels", "source_pixels")


class MixtureKind(ProfilePart):
    """What of a mixture its best knobs hang on; what is left out is not known."""

    datasets: int | None = Field(None, ge=1, description="datasets that are mixed")
    batch: int | None = Field(None, ge=1, description="samples of a batch")
    frames: int | None = Field(None, ge=0, description="frames of a sample, over all cameras")
    pixels: int | None = Field(None, ge=1, description="pixels of a frame in the batch, the mean")
    source_pixels: int | None = Field(
        None, ge=1, description="pixels of a frame in the files, the mean over datasets"
    )
    encoding: str | None = Field(
        None, description="how most datasets store frames: jpeg, png, video, raw …"
    )

    def doublings_to(self, other: MixtureKind) -> float:
        """How far ``other`` is; 0 where all that both say is the same."""
        apart = 0.0
        for name in _COUNTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs:
                apart += abs(math.log2(mine / theirs))
            elif None not in (mine, theirs) and mine != theirs:
                apart += FAR_DOUBLINGS  # one mixture has frames, the other none
        if None not in (self.encoding, other.encoding) and self.encoding != other.encoding:
            apart += ENCODING_DOUBLINGS
        return apart

    def is_like(self, other: MixtureKind) -> bool:
        """Whether a measurement of one replaces one of the other: less than a quarter apart."""
        return self.doublings_to(other) < 0.25

    def describe(self) -> str:
        """For people, such as "29 datasets, batch 32, 2 frames of 65536 pixels, jpeg"."""
        words = []
        if self.datasets is not None:
            words.append(f"{self.datasets} dataset{'s' if self.datasets != 1 else ''}")
        if self.batch is not None:
            words.append(f"batch {self.batch}")
        if self.frames is not None:
            of = f" of {self.pixels} pixels" if self.pixels else ""
            words.append(f"{self.frames} frame{'s' if self.frames != 1 else ''}{of}")
        if self.encoding is not None:
            source = f" of {self.source_pixels} pixels" if self.source_pixels else ""
            words.append(f"{self.encoding}{source} in the files")
        return ", ".join(words) or "any mixture"
