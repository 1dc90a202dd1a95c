from __future__ import annotations

import pytest
from rlds_files import Written, write_pair


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """Three datasets of 15, 12 and 9 samples; those of ``saved_states.json``."""
    return list(write_pair(tmp_path_factory.mktemp("trio"), a=[[7, 8]], b=[[4, 8]], c=[[9]]))
