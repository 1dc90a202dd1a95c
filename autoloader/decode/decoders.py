"""Which decoder a camera of a dataset has: colours, colours with channels turned, or depth.

Not here: decoding (``decode.frames``, ``decode.depth``), which cameras are turned
(``transforms.cameras``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloader.decode.depth import DepthDecoder
from autoloader.decode.frames import FrameDecoder, Pixels
from autoloader.decode.row_jobs import Decoder
from autoloader.samples.block import Encoded
from autoloader.samples.resolve import ResolvedMixture


class ReversedDecoder:
    """A decoder of frames whose first and last channels change places.

    Args:
        decoder: decodes and resizes them as they are.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """See ``FrameDecoder.decode_into``."""
        self._decoder.decode_into(encoded, out)
        out[...] = out[..., ::-1].copy()


def decoders_of(mixture: ResolvedMixture) -> Sequence[Mapping[str, Decoder]]:
    """A decoder for each camera of each dataset; datasets share them where they can."""
    plain = {camera: FrameDecoder(spec) for camera, spec in mixture.spec.cameras.items()}
    turned = {camera: ReversedDecoder(decoder) for camera, decoder in plain.items()}
    found = []
    for dataset in mixture.datasets:
        own: dict[str, Decoder] = {
            camera: turned[camera] if camera in dataset.reversed else plain[camera]
            for camera in plain
        }
        for camera, choices in dataset.cameras.items():
            spec = mixture.spec.cameras[camera]
            if spec.depth:
                own[camera] = DepthDecoder(spec, choices[0])
        found.append(own)
    return found
