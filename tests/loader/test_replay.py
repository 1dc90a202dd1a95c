"""``replay_one_batch``: the trainer alone, with the loader's own epochs and without its work."""

from typing import Any

import numpy as np
import pytest
from rlds_files import Written
from streams import spec_of

from autoloader import AutoLoader
from autoloader.errors import UsageError

KNOBS = {"ring_slots": 4, "decode_threads": 2, "queue_samples": 8}


pytestmark = pytest.mark.usefixtures("no_thread_left_behind")


def load(trio: list[Written], **own: Any) -> AutoLoader:
    spec = spec_of(*trio, reader="indexed", mixing={"epoch": 24})
    own = {"isolation": "thread", "ram_floor": "64MiB", "knobs": KNOBS, "output": "numpy", **own}
    return AutoLoader(spec, **own)


def plain(batch: Any) -> dict[str, Any]:
    return {key: value.copy() for key, value in batch.items() if hasattr(value, "copy")}


def test_the_same_batch_comes_again_for_as_many_steps_as_an_epoch_has(trio: list[Written]):
    with load(trio) as loader, load(trio, replay_one_batch=True) as replayed:
        expected = len(loader)
        first = plain(next(iter(loader)))
        assert len(replayed) == expected
        for _ in range(2):
            epoch = list(replayed)
            assert len(epoch) == expected
            for batch in epoch:
                np.testing.assert_array_equal(batch["provenance"], first["provenance"])
                np.testing.assert_array_equal(batch["action"], first["action"])


def test_a_state_says_where_it_was_when_it_began_to_repeat(trio: list[Written]):
    with load(trio) as loader:
        batches = iter(loader)
        next(batches)
        expected = loader.state_dict()
        second = plain(next(batches))
    with load(trio, replay_one_batch=True) as replayed:
        list(replayed)
        assert replayed.state_dict() == expected
        state = replayed.state_dict()
    with load(trio) as loader:
        loader.load_state_dict(state)
        resumed = next(iter(loader))
        np.testing.assert_array_equal(resumed["provenance"], second["provenance"])


def test_it_is_a_yes_or_no(trio: list[Written]):
    with pytest.raises(UsageError, match=r"(?s)replay_one_batch=3 is not allowed.*True or False"):
        AutoLoader(spec_of(*trio), replay_one_batch=3)  # type: ignore[arg-type]
