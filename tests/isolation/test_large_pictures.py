"""Pictures of which a few at a time take more memory than there is."""

import json
from pathlib import Path
from typing import Any

from ended import python
from rlds_files import episode, write_dataset
from slow_pictures import slow_jpeg
from streams import spec_file, spec_of

from autoloader.host.units import MIB

SIDE = 7992
"""64 million pixels; libjpeg takes 305 MiB for one in grey with coefficients."""


def test_a_loader_in_a_small_group_decodes_the_largest_pictures_without_a_kill(
    small_group: Path, tmp_path: Path
):
    shards: list[list[Any]] = [[episode(number, 2) for number in range(4)]]
    for number, one in enumerate(shards[0]):
        one["observation/image"] = [
            slow_jpeg(SIDE, SIDE, 4, grey=60 + 20 * number + 10 * step) for step in range(2)
        ]
    spec = spec_of(write_dataset(tmp_path, shards), batch={"size": 4})
    mix = spec_file(tmp_path, spec)
    (small_group / "memory.limit_in_bytes").write_text(str(1000 * MIB))
    script = Path(__file__).parent / "large_pictures.py"
    told = json.loads(python(script, small_group, mix, 2).stdout)
    assert told["restarts"] == told["kills"] == told["quarantined"] == 0
    for rows, shades in told["shown"]:
        assert shades == [60 + 20 * row[3] + 10 * row[4] for row in rows]
