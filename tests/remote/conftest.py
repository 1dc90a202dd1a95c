"""A bucket ``gs://lab`` on this machine, read by TensorFlow's own client."""

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cloud_storage
import numpy as np
import pytest
import simplejpeg
from rlds_files import Written, episode, write_dataset
from streams import dataset_of

from autoloader.formats import files


@dataclass
class Lab:
    """What lies in the bucket.

    Attributes:
        storage: serves it.
        small: two shards of tiny episodes.
        large: two shards of about 2.5 MB, which the client asks for piece by piece.
    """

    storage: cloud_storage.CloudStorage
    small: Written
    large: Written
    own: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def url(written: Written) -> str:
        return f"gs://lab/{written.name}/1.0.0"

    def dataset(self, written: Written, **own: Any) -> dict[str, Any]:
        """What a spec says of a dataset in the bucket."""
        return dataset_of(written, **{"path": self.url(written), **own})


def noise(number: int, step: int) -> bytes:
    """A picture that compresses badly: about 70 kB."""
    picture = np.random.default_rng((number, step)).integers(0, 256, (200, 200, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="444"))


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("buckets")
    small = write_dataset(
        folder / "lab", [[episode(10 * s + e, 3 + e) for e in range(4)] for s in range(2)]
    )
    large = write_dataset(
        folder / "lab",
        [[episode(10 * s + e, 4, encode=noise) for e in range(9)] for s in range(2)],
        name="large",
    )
    with cloud_storage.serve(folder, tmp_path_factory.mktemp("certificates")) as (storage, found):
        yield Lab(storage, small, large), found


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What one module fetches, no other finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def lab(_served: tuple[Lab, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The bucket, sound and silent; TensorFlow reads it in whatever process."""
    found, environment = _served
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        if name not in environment:
            monkeypatch.delenv(name)
    found.storage.fault = lambda _: None
    found.storage.latency_s = 0.0
    found.storage.asked.clear()
    yield found
    found.storage.fault = lambda _: None


@pytest.fixture
def here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The bucket, read by this process's own TensorFlow.

    Streams that the test leaves are freed while TensorFlow still answers: to free one waits for
    the reads that it has under way, and without TensorFlow they would be repeated for minutes.
    """
    monkeypatch.setattr(files, "_here", None)
    monkeypatch.setattr(files, "_window_bytes", files.FRONT_BYTES)
    from autoloader.pipeline.graph import files as answering

    answering.enter()
    yield lab
    lab.storage.fault = lambda _: None
    gc.collect()
