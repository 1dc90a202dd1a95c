"""Depth frames in both readers, against plain TFDS: every form of storage, to the bit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from plain_tfds import plain_episodes, value_at
from rlds_files import PLAIN, Written, episode, image, numbers, png, write_dataset, write_records
from streams import dataset_of, mixture_of, opened, opened_by, spec_of

from autoloader import AutoLoader
from autoloader.errors import SpecError

HEIGHT, WIDTH = 6, 9
STEPS = (5, 1, 7)
FORMS = {
    "png16": "uint16",
    "picture": "float32",
    "flat": "float32",
    "column": "float32",
    "packed": "float32",
    "whole": "float32",
    "raw16": "uint16",
}
"""Feature of the observation → the type that its camera has."""
EVERY = {f"depth_{name}": name for name in FORMS}
CAMERAS = {"primary": {"size": [HEIGHT, WIDTH]}} | {
    camera: {"size": [HEIGHT, WIDTH], "depth": FORMS[name]} for camera, name in EVERY.items()
}
IMAGES = {"primary": "observation/image"} | {
    camera: f"observation/{name}" for camera, name in EVERY.items()
}


def depth_of(name: str, steps: int, random: np.random.Generator) -> np.ndarray:
    """[T, H, W, 1] or [T, H, W] values, with those that rounding and colours would lose."""
    shape = (steps, HEIGHT, WIDTH)
    if FORMS[name] == "uint16":
        values = random.integers(0, 2**16, shape).astype(np.uint16)
        values[:, 0, :3] = (0, 1, 2**16 - 1)
    elif name == "whole":
        values = random.integers(-(2**24), 2**24, shape).astype(np.int32)
    else:
        values = random.normal(size=shape).astype(np.float32)
        values[:, 0, :5] = (0, -0.0, np.nan, np.inf, 1e-42)
    return values[..., None] if name in ("png16", "picture", "column", "whole") else values


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as TFDS's own encoders write it."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import example_serializer

    kinds = tfds.features
    cell = (HEIGHT, WIDTH)
    tree = kinds.FeaturesDict(
        {
            "steps": kinds.Dataset(
                {
                    "observation": {
                        "image": kinds.Image(shape=(*cell, 3), encoding_format="png"),
                        "png16": kinds.Image(shape=(*cell, 1), dtype=np.uint16),
                        "picture": kinds.Image(shape=(*cell, 1), dtype=np.float32),
                        "flat": kinds.Tensor(shape=cell, dtype=np.float32),
                        "column": kinds.Tensor(shape=(*cell, 1), dtype=np.float32),
                        "packed": kinds.Tensor(shape=cell, dtype=np.float32, encoding="zlib"),
                        "whole": kinds.Tensor(shape=(*cell, 1), dtype=np.int32),
                        "raw16": kinds.Tensor(shape=cell, dtype=np.uint16, encoding="bytes"),
                        "state": kinds.Tensor(shape=(3,), dtype=np.float32),
                    },
                    "action": kinds.Tensor(shape=(2,), dtype=np.float32),
                }
            ),
            "episode_metadata": {"has_depth": kinds.Scalar(np.bool_)},
        }
    )
    serializer = example_serializer.ExampleSerializer(tree.get_serialized_info())
    random = np.random.default_rng(0)
    payloads = []
    for number, steps in enumerate(STEPS):
        rows = {name: depth_of(name, steps, random) for name in FORMS}
        rows["image"] = random.integers(0, 256, (steps, *cell, 3)).astype(np.uint8)
        rows["state"] = random.normal(size=(steps, 3)).astype(np.float32)
        told = [
            {
                "observation": {name: values[t] for name, values in rows.items()},
                "action": np.asarray([number, t], np.float32),
            }
            for t in range(steps)
        ]
        example = {"steps": told, "episode_metadata": {"has_depth": number != 2}}
        payloads.append(serializer.serialize_example(tree.encode_example(example)))
    path = tmp_path_factory.mktemp("depth") / "robot" / "1.0.0"
    path.mkdir(parents=True)
    write_records(path / "robot-train.tfrecord-00000-of-00001", payloads)
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(payloads))],
        "numBytes": "1",
    }
    info = {"name": "robot", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (path / "dataset_info.json").write_text(json.dumps(info))
    tree.save_config(str(path))
    return path


def loader_of(path: Path, reader: str, cameras: Mapping[str, Any] = CAMERAS,
              output: str = "numpy", sample: Any = None, **own: Any) -> AutoLoader:  # fmt: skip
    images = {name: IMAGES[name] for name in cameras}
    declared = {"name": "robot", "path": str(path), "images": images, "action": "action",
                "state": "observation/state", **own}  # fmt: skip
    return opened_by(reader, declared, cameras=cameras, sample=sample or {}, output=output)


@pytest.fixture(scope="module")
def plain(data: Path) -> list[list[dict[str, Any]]]:
    return list(plain_episodes(data, "train"))


def same_bits(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two arrays hold the same bytes; NaN is not itself."""
    wanted = np.ascontiguousarray(wanted.reshape(got.shape))
    return got.dtype == wanted.dtype and got.tobytes() == wanted.tobytes()


CUT = {"stride": 2, "steps": {"drop_first": 1, "drop_last": 1}}
CALL = {"transform": {"call": "lab_hooks:drop_first"}}


@pytest.mark.parametrize(
    ("reader", "own", "first", "every", "last"),
    [
        ("stream", CALL, 1, 1, 0),
        ("stream", CUT, 1, 2, 1),
        ("indexed", CALL, 1, 1, 0),
        ("indexed", CUT, 1, 2, 1),
        ("processes", {}, 0, 1, 0),
    ],
)
def test_depth_frames_are_those_of_plain_tfds_to_the_bit(
    data: Path, plain: list[list[dict[str, Any]]], reader: str, own: Any, first: int, every: int,
    last: int
):  # fmt: skip
    offsets, seen = [-1, 0, 2], 0
    edges = {"start": "zero", "end": "repeat"}
    sample = {"frame_offsets": offsets, "edges": edges}
    with loader_of(data, reader, sample=sample, **own) as loader:
        for batch in loader:
            assert batch["images"]["depth_flat"].shape[1:] == (3, HEIGHT, WIDTH, 1)
            for k, (_, _, _, record, t) in enumerate(batch["provenance"].tolist()):
                steps = plain[record][first : len(plain[record]) - last][::every]
                for f, offset in enumerate(offsets):
                    at = t + offset
                    inside = 0 <= at < len(steps)
                    step = steps[min(max(at, 0), len(steps) - 1)]
                    for camera, name in EVERY.items():
                        wanted = np.asarray(value_at(step, f"observation/{name}"))
                        wanted = wanted.astype(FORMS[name])
                        if at < 0:
                            wanted = np.zeros_like(wanted)
                        got = batch["images"][camera][k][f]
                        assert same_bits(got, wanted), (camera, record, t, f)
                        assert bool(batch["frame_mask"][camera][k][f]) == inside
                        seen += 1
    assert seen > 100


def broken(folder: Path, frame: bytes) -> Written:
    """A dataset whose second step holds ``frame`` where depth is."""
    good = bytes(cv2.imencode(".png", np.full((12, 16), 9, np.uint16))[1])
    frames = [good, frame, good, good]
    values = {**episode(0, 4, encode=png), "observation/depth": frames}
    features = {**PLAIN, "observation/depth": image(dtype="uint16", channels=1)}
    return write_dataset(folder, [[values]], features=features)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes(cv2.imencode(".png", np.zeros((12, 16), np.uint8))[1]), "1 channel of 8 bits"),
        (bytes(cv2.imencode(".png", np.zeros((12, 16, 3), np.uint16))[1]), "3 channels of 16 bits"),
        (b"no picture", "not a JPEG or PNG"),
        (b"", "0 bytes"),
    ],
)
def test_a_frame_that_is_no_depth_is_quarantined_with_its_reason(
    tmp_path: Path, frame: bytes, reason: str
):
    written = broken(tmp_path, frame)
    spec = spec_of(
        dataset_of(written, images={"depth": "observation/depth"}),
        cameras={"depth": {"size": [12, 16], "depth": "uint16"}},
        errors={"max_corrupt_ratio": 1},
    )
    with opened(spec, controller=False) as loader:
        batch = next(iter(loader))
        (bad,) = loader.quarantined()
    assert reason in bad.reason
    assert (batch["images"]["depth"] == 9).all()


DEPTH = {"size": [12, 16], "depth": "float32"}


@pytest.mark.parametrize(
    ("images", "camera", "said"),
    [
        ("observation/image", DEPTH, "(image uint8, 12×16×3) is not a depth frame"),
        ("observation/state", DEPTH, "(tensor float32, 3) is not a depth frame"),
        ("ragged", DEPTH, "not a depth frame"),
        ("double", DEPTH, "not a depth frame"),
        ("absent", DEPTH, "is not a feature of the dataset"),
        ("depth", {**DEPTH, "depth": "uint16"}, "does not fit the camera's depth: uint16"),
        ({"any_of": ["depth", "depth16"]}, DEPTH, "stored in different ways"),
        ("depth", {"size": [12, 16]}, "not an image of the steps"),
        ("depth16", {"size": [12, 16]}, "is a depth or float image"),
        ("depth", {**DEPTH, "resize": "bilinear"}, "resize: bilinear"),
        ("depth", {**DEPTH, "depth": "uint8"}, "'uint8'"),
        ({"path": "depth", "ops": ["flip_channels"]}, DEPTH, "flip_channels swaps colours"),
    ],
)  # fmt: skip
def test_what_is_no_depth_is_refused_by_field_with_a_remedy(
    tmp_path: Path, images: Any, camera: Any, said: str
):
    features = {
        **PLAIN,
        "depth": numbers(12, 16),
        "depth16": image(dtype="uint16", channels=1),
        "ragged": numbers(None, 16),
        "double": numbers(12, 16, dtype="float64", encoding="zlib"),
    }
    written = write_dataset(tmp_path, [[b""]], features=features)
    with pytest.raises(SpecError, match="depth") as refused:
        mixture_of(dataset_of(written, images={"depth": images}), cameras={"depth": camera})
    assert said in str(refused.value)
    assert refused.value.remedy
