"""Augmentation: what is drawn, what becomes of frames, and that a resumed run draws the same."""

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rlds_files import Written, written_steps
from streams import dataset_of, spec_of

import autoloader
from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import UsageError
from autoloader.process.augmentation import Augmenter, augmenter

pytestmark = pytest.mark.usefixtures("one_child")

FULL = {
    "primary": {
        "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
        "brightness": 0.1,
        "contrast": [0.9, 1.1],
        "saturation": 0.1,
        "hue": 0.05,
    }
}
BARE: dict[str, Any] = {
    "datasets": [
        {"name": "a", "path": "/a", "images": {"primary": "image"}},
        {"name": "b", "path": "/b", "images": {"primary": "image"}, "split": {"train": "train"}},
    ],
    "cameras": {"primary": {"size": [8, 10]}},
}


def spec_with(augment: dict[str, Any] | None, **top: Any) -> PipelineSpec:
    return PipelineSpec.from_mapping({**BARE, "augment": augment, **top})


def batch_of(images: np.ndarray, provenance: list[list[int]]) -> dict[str, Any]:
    return {"images": {"primary": torch.from_numpy(images)}, "provenance": torch.tensor(provenance)}


def noise(count: int = 2, frames: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, (count, frames, 8, 10, 3), dtype=np.uint8)


PLACES = [[0, 0, 1, 2, 3], [1, 0, 1, 2, 3]]
place = st.lists(
    st.tuples(st.integers(0, 1), *[st.integers(0, 2**40)] * 4), min_size=1, max_size=20
)


@given(place)
def test_parameters_stay_within_what_the_spec_says(places: list[tuple[int, ...]]):
    crop, *factors = augmenter(spec_with(FULL)).parameters(np.asarray(places))["primary"]
    for drawn, (low, high) in zip(
        factors, [(-0.1, 0.1), (0.9, 1.1), (0.9, 1.1), (-0.05, 0.05)], strict=True
    ):
        assert ((drawn >= np.float32(low)) & (drawn <= np.float32(high))).all()
    left, top, width, height = crop.T
    assert (np.minimum(left, top) >= 0).all()
    assert (left + width <= 1 + 1e-6).all()
    assert (top + height <= 1 + 1e-6).all()
    assert (width * height <= 1 + 1e-6).all()
    assert (width * height >= 0.8 * 0.9).all()  # cut to the frame where the ratio asks for more


def test_frames_of_a_sample_share_their_parameters_and_the_given_batch_is_left():
    images = np.repeat(noise(2, 1), 3, axis=1)
    batch = batch_of(images.copy(), PLACES)
    done = augmenter(spec_with(FULL))(batch)["images"]["primary"].numpy()
    assert done.dtype == np.uint8
    assert done.shape == images.shape
    np.testing.assert_array_equal(done[:, 0], done[:, 1])
    np.testing.assert_array_equal(done[:, 0], done[:, 2])
    assert not np.array_equal(done, images)
    np.testing.assert_array_equal(batch["images"]["primary"].numpy(), images)


def test_each_operation_is_what_it_says():
    images = noise()
    real = images.astype(np.float64)

    def done(**operation: Any) -> np.ndarray:
        batch = augmenter(spec_with({"primary": operation}))(batch_of(images.copy(), PLACES))
        return batch["images"]["primary"].numpy()

    brighter = np.clip(real + 0.2 * 255, 0, 255)
    np.testing.assert_allclose(done(brightness=[0.2, 0.2]), brighter, atol=0.51)
    grey = (real @ [0.299, 0.587, 0.114]).mean(axis=(2, 3))[:, :, None, None, None]
    flatter = grey + 0.5 * (real - grey)
    np.testing.assert_allclose(done(contrast=[0.5, 0.5]), flatter, atol=0.6)
    pale = done(saturation=[0.0, 0.0])
    assert (pale.max(axis=-1).astype(int) - pale.min(axis=-1) <= 1).all()
    turned = done(hue=[1 / 3, 1 / 3])  # red becomes green, green blue, blue red
    np.testing.assert_allclose(turned, np.roll(real, 1, axis=-1), atol=1.01)
    np.testing.assert_array_equal(
        done(random_resized_crop={"scale": [1, 1], "ratio": [1, 1]}), images
    )
    zoomed = done(random_resized_crop={"scale": [0.25, 0.25], "ratio": [1, 1]})
    drawn = augmenter(
        spec_with({"primary": {"random_resized_crop": {"scale": [0.25, 0.25], "ratio": [1, 1]}}})
    )
    crop = drawn.parameters(np.asarray(PLACES))["primary"][0]
    for k, (left, top, width, height) in enumerate(crop):
        x = (left + np.linspace(0, 1, 10) * width) * 9
        y = (top + np.linspace(0, 1, 8) * height) * 7
        grid = np.meshgrid(x.astype(np.float32), y.astype(np.float32))
        wanted = cv2.remap(images[k, 0].astype(np.float32), *grid, cv2.INTER_LINEAR)
        np.testing.assert_allclose(zoomed[k, 0], wanted, atol=8)  # remap rounds to 1/32 pixels


def test_frames_that_hold_nothing_stay_zero():
    images = noise()
    images[0, 1] = 0
    images[1] = 0
    done = augmenter(spec_with({"primary": {"brightness": [0.5, 0.5]}}))
    found = done(batch_of(images, PLACES))["images"]["primary"].numpy()
    assert not found[0, 1].any()
    assert not found[1].any()
    assert found[0, 0].any()


def test_without_augment_and_outside_training_batches_come_back_as_they_are():
    batch = batch_of(noise(), PLACES)
    assert augmenter(spec_with(None))(batch) is batch
    assert augmenter(spec_with(FULL), "val")(batch) is batch
    assert not augmenter(spec_with(FULL), "val").active


def test_a_batch_without_provenance_torch_or_spec_is_refused_with_a_remedy():
    batch = batch_of(noise(), PLACES)
    with pytest.raises(UsageError, match="does not say how") as caught:
        autoloader.augment(batch)
    assert "augment(batch, spec)" in caught.value.remedy
    with pytest.raises(UsageError, match="provenance"):
        autoloader.augment({"images": batch["images"]}, spec_with(FULL))
    batch["images"] = {"primary": batch["images"]["primary"].numpy()}
    with pytest.raises(UsageError, match="not torch tensors"):
        autoloader.augment(batch, spec_with(FULL))


written = written_steps([[9] * 3, [8]])


def test_a_run_resumed_within_an_epoch_augments_to_the_bit_as_it_would_have(written: Written):
    spec = spec_of(
        dataset_of(written, split={"train": "train", "val": "train"}),
        augment=FULL, sample={"frame_offsets": [0, 2]},
    )  # fmt: skip
    how = augmenter(spec)
    with AutoLoader(spec, ram_floor=0) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        wanted = [next(batches) for _ in range(4)]
        parameters = [how.parameters(batch["provenance"].numpy()) for batch in wanted]
        frames = [autoloader.augment(batch)["images"]["primary"].clone() for batch in wanted]
    with AutoLoader(spec, ram_floor=0, knobs={"decode_threads": 1}) as loader:
        loader.load_state_dict(state)
        for (batch, before), picture in zip(
            zip(loader, parameters, strict=False), frames, strict=True
        ):
            again = Augmenter(spec).parameters(batch["provenance"].numpy())
            for one, other in zip(again["primary"], before["primary"], strict=True):
                assert one.tobytes() == other.tobytes()
            assert torch.equal(autoloader.augment(batch)["images"]["primary"], picture)
    with AutoLoader(spec, ram_floor=0, split="val") as loader:
        batch = next(iter(loader))
        assert torch.equal(
            autoloader.augment(batch)["images"]["primary"], batch["images"]["primary"]
        )


def test_a_batch_rebuilt_by_its_type_asks_for_the_spec(written: Written):
    from lightning_utilities.core.apply_func import apply_to_collection

    spec = spec_of(written, augment=FULL)
    with AutoLoader(spec, ram_floor=0, isolation="thread") as loader:
        moved = apply_to_collection(next(iter(loader)), torch.Tensor, torch.clone)
    with pytest.raises(UsageError, match="does not say how"):
        autoloader.augment(moved)
    assert autoloader.augment(moved, spec)["images"]["primary"].dtype == torch.uint8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_gives_what_the_host_gives():
    batch = batch_of(noise(8, 2), [[0, 0, 0, 0, t] for t in range(8)])
    moved = {
        "images": {"primary": batch["images"]["primary"].cuda()},
        "provenance": batch["provenance"].cuda(),
    }
    here = augmenter(spec_with(FULL))(batch)["images"]["primary"].int()
    there = augmenter(spec_with(FULL))(moved)["images"]["primary"]
    assert there.is_cuda
    assert (there.cpu().int() - here).abs().max() <= 1
