"""Keyed draws: the same for the same place, uniform, and known values that may never change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import draws

KEYS = st.integers(0, 2**64 - 1)


def test_splitmix64_gives_the_published_sequence():
    # The first outputs of the reference generator seeded with 1234567 (Vigna's splitmix64.c).
    state, found = 1234567, []
    for _ in range(5):
        found.append(draws.splitmix64(state))
        state = (state + draws.GOLDEN) & draws.MASK
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_of_datasets_depend_on_seed_and_name_and_never_change():
    assert draws.dataset_key(0, "bridge") == 12421433198979537006
    keys = {draws.dataset_key(seed, name) for seed in (0, 1, 10) for name in ("a", "b", "0a", "1a")}
    assert len(keys) == 12


def test_no_two_purposes_share_a_key():
    every = [getattr(draws, name) for name in dir(draws) if name.startswith("PURPOSE_")]
    assert len(set(every)) == len(every)


@given(st.lists(KEYS, min_size=1, max_size=20))
def test_arrays_are_hashed_alike_and_follow_from_their_hashes(numbers: list[int]):
    values = np.asarray(numbers, dtype=np.uint64)
    hashes = draws.splitmix64_array(values)
    assert values.tolist() == numbers
    assert hashes.tolist() == [draws.splitmix64(number) for number in numbers]
    assert draws.unmixed_array(hashes).tolist() == numbers
