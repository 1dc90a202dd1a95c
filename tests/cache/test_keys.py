"""A cached frame is never shown where another one was asked for: keys hold all that made it."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from lerobot_files import LeRobotFiles
from streams import Playing, mixture_of
from test_frame_table import FRAME_BYTES, frames

from autoloader.cache.slab import FILE_BITS
from autoloader.cache.table import FrameTable
from autoloader.decode import decoders
from autoloader.decode.decoders import DecodeRequest
from autoloader.formats import Feature
from autoloader.spec import CameraSpec
from autoloader.spec.model import Resize

TOP, SIDE = "observation.images.top", "observation.images.side"
OTHERS: dict[str, Any] = {
    "camera": CameraSpec(size=(5, 6)),
    "reversed": True,
    "stored": Feature("depth", "steps/depth", "image", "uint16", (4, 4, 1), "png", True),
    "white": True,
}
"""Another value of each field of a request: one that is missing here is in no key for sure."""
OTHER_CAMERAS: dict[str, Any] = {
    "size": (4, 3), "resize": "area", "fit": "pad", "depth": "uint16", "placeholder": True,
}  # fmt: skip


def told() -> DecodeRequest:
    return DecodeRequest(CameraSpec(size=(3, 4)))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DecodeRequest)])
def test_every_field_of_a_request_is_part_of_its_digest(name: str):
    other = dataclasses.replace(told(), **{name: OTHERS[name]})
    assert other.digest != told().digest
    assert other != told()
    assert told().digest == told().digest


@pytest.mark.parametrize("name", CameraSpec.model_fields)
def test_every_field_of_a_camera_is_part_of_the_digest(name: str):
    fields = {"size": (3, 4), "depth": "float32"} if name == "depth" else {"size": (3, 4)}
    if name == "resize":
        others = [v for v in get_args(Resize) if v != told().camera.resize]
    else:
        others = [OTHER_CAMERAS[name]]
    digests = {
        DecodeRequest(CameraSpec.model_validate({**fields, **more})).digest
        for more in ({}, *({name: other} for other in others))
    }
    assert len(digests) == 1 + len(others)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Feature)])
def test_every_field_of_a_stored_feature_is_part_of_the_digest(name: str):
    stored = OTHERS["stored"]
    other = dataclasses.replace(stored, **{name: None})
    requests = (DecodeRequest(told().camera, stored=one) for one in (stored, other))
    assert len({request.digest for request in requests}) == 2


def wrong_rows(batches: int, *entries: Any, **fields: Any) -> int:
    """Rows of a mixture that are not those of each of its entries alone, held and not held."""
    alone: list[dict[tuple[int, ...], np.ndarray]] = []
    for entry in entries:
        playing, rows = Playing(mixture_of(entry, **fields)), dict[tuple[int, ...], np.ndarray]()
        for batch in playing.batches(batches):
            places = map(tuple, batch["provenance"][:, 2:].tolist())
            rows.update(zip(places, batch["images/primary"], strict=True))
        playing.close()
        alone.append(rows)
    wrong = 0
    for cache_bytes in (0, 10**8):
        playing = Playing(mixture_of(*entries, **fields), cache_bytes=cache_bytes)
        for batch in playing.batches(batches):
            for (dataset, _, *place), shown in zip(
                batch["provenance"].tolist(), batch["images/primary"], strict=True
            ):
                wrong += int((alone[dataset][tuple(place)] != shown).any())
        assert (playing.pipeline.activity().cache.hits > 0) == (cache_bytes > 0)
        playing.close()
    return wrong


@pytest.mark.parametrize("pair", [(TOP, SIDE), ("p.one", "p.two")], ids=["videos", "pictures"])
def test_entries_that_show_different_cameras_of_the_same_episodes_show_their_own(
    tmp_path: Path, pair: tuple[str, str]
):
    files = LeRobotFiles(cameras={TOP: 2, SIDE: 2}, pictures=["p.one", "p.two"])
    root = str(files.write(tmp_path / "arm"))
    entries = [
        {"name": name, "path": root, "images": {"primary": feature}, "action": "action"}
        for name, feature in zip("ab", pair, strict=True)
    ]
    camera = {"primary": {"size": [64, 96]}}
    mixed = {"cameras": camera, "mixing": {"block_length": 1}}
    assert wrong_rows(60, *entries, **mixed) == 0


def test_a_frame_has_the_key_of_no_other_however_many_files_there_are():
    made = {"primary": [0, 1], "wrist": [0, 0]}
    table = FrameTable(FRAME_BYTES, 2, made=made, room_bytes=2**26)
    table.claim(table, 2**26)
    most = 2 ** (63 - FILE_BITS) // 2
    table._files.update({"first": 0, "last": most - 1, "beyond": most, "far": 4 * most})
    for number, path in enumerate(("first", "last", "beyond", "far")):
        asked = frames(np.arange(3), np.full(3, 10))
        lease = table.ask([path], {"primary": asked}, 0, 1)
        assert (lease.slots["primary"] >= 0).all() == (number < 2)
        assert not lease.cached["primary"].any()
        for slot in lease.slots["primary"][lease.slots["primary"] >= 0]:
            lease.written["primary"][slot] = True
        lease.filled(1)
    table.close()


def test_versions_of_the_decoder_are_part_of_the_digest(monkeypatch: pytest.MonkeyPatch):
    before = told().digest
    monkeypatch.setattr(decoders, "_versions", lambda: ("decoder 0",))
    assert told().digest != before
