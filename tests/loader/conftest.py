from __future__ import annotations

import itertools

import pytest
from rlds_files import Written, episode, png, write_dataset


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """Three datasets of 15, 12 and 9 samples; those of ``saved_states.json``."""
    folder = tmp_path_factory.mktemp("trio")
    number = itertools.count()
    return [
        write_dataset(folder, [[episode(next(number), n, encode=png) for n in lengths]], name=name)
        for name, lengths in (("a", [7, 8]), ("b", [4, 8]), ("c", [9]))
    ]
