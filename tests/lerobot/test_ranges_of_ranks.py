"""Files that every rank of lerobot's script writes, while the others read them."""

import json
from pathlib import Path
from types import SimpleNamespace

from autoloader.integrations.lerobot_train import _ranges


def test_a_rank_never_reads_half_of_the_ranges_that_another_one_writes(tmp_path: Path):
    starts = {"dataset_from_index": [0, 12], "dataset_to_index": [12, 19]}
    meta = SimpleNamespace(episodes={"episode_index": [0, 1], **starts})
    path = Path(_ranges(meta, 2, tmp_path / "out")["file"])
    with path.open() as reader:
        assert _ranges(meta, 2, tmp_path / "out")["file"] == str(path)
        assert not path.samefile(f"/proc/self/fd/{reader.fileno()}")
    assert json.loads(path.read_text()) == {"0": [[0, 10]], "1": [[0, 5]]}
