"""The row of a study that several processes share, on a PostgreSQL server of this machine.

Not here: the other rows (``bench.tuner.rows``).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from autoloader.profile import find_profile, keep_whole
from autoloader.tune.shared.postgres import server
from autoloader.tune.storage import storage_url
from bench.tuner.rows import told_fates
from bench.tuner.studies import Row

SLOW_START = {
    "decode_threads": 1,
    "io_threads": 1,
    "read_ahead": 1,
    "ring_slots": 4,
    "queue_samples": 8,
}
"""A start that is easily beaten, so that there is a profile to keep."""

_STUDY = "shared"
_WAIT_S = 0.3


def shared_study(row: Row) -> dict[str, Any]:
    """Three tuners on one study, one killed in a trial: none lost, one verdict, one profile."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        with server(Path(folder) / "pg") as url:
            return _shared(row, url)


def _shared(row: Row, url: str) -> dict[str, Any]:
    base = find_profile("local_dev").profile
    slow = base.model_copy(
        update={"name": "slow", "knobs": base.knobs.model_copy(update=SLOW_START)}
    )
    start = keep_whole(slow, out=row.folder / "slow.yaml").path
    more = ("--profile", str(start), "--storage", url, "--name", _STUDY)
    command = row.command(*more, name=_STUDY)
    command[command.index("--out") : command.index("--out") + 2] = []  # one folder of profiles
    tuners = [
        subprocess.Popen([*command, "--seed", str(seed)], env=row.environment(), stdout=-1)
        for seed in (1, 2, 3)
    ]
    storage = storage_url(url)
    while sum(one["outcome"] == "running" for one in _known(storage)) < 2:
        time.sleep(_WAIT_S)
        if any(one.poll() is not None for one in tuners):
            break
    tuners[0].kill()
    answers = [json.loads(one.communicate()[0] or b"{}") for one in tuners[1:]]
    tuners[0].communicate()
    fates = told_fates(storage, _STUDY)
    lost = [one["knobs"] for one in fates if one["outcome"] == "fail"]
    measured = [one["knobs"] for one in fates if one["outcome"] not in ("fail", "running")]
    won = [one.get("speedup", 0.0) > 1.0 for one in answers]
    profiles = sorted((row.folder / "config" / "profiles").glob("*.yaml"))
    return {
        "exit_codes": [one.returncode for one in tuners],
        "fates": [one["outcome"] for one in fates],
        "lost": len([one for one in lost if one not in measured]),
        "best": [one.get("best") for one in answers],
        "profile_notes": [one.get("profile_notes") for one in answers],
        "speedup": [one.get("speedup") for one in answers],
        "profiles": [one.name for one in profiles],
        "kept": [one.returncode for one in tuners[1:]] == [0, 0]
        and answers[0]["best"] == answers[1]["best"]
        and all(one in measured for one in lost)
        and "running" not in [one["outcome"] for one in fates]
        and all(won)
        and [one.name for one in profiles] == [f"{_STUDY}.yaml"],
    }


def _known(storage: str) -> list[dict[str, Any]]:
    """Fates, as soon as there is a study."""
    try:
        return told_fates(storage, _STUDY)
    except Exception:  # noqa: BLE001  (its tables are being made by the first tuner)
        return []
