"""Logs of a run are appended to files of this user's own."""

import os
from pathlib import Path

import pytest

from autoloader.telemetry.lines import LineLog


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "another's"])
def test_what_is_no_file_of_this_user_is_left_as_it_is(tmp_path: Path, kind: str):
    place, target = tmp_path / "run.jsonl", tmp_path / "precious"
    target.write_bytes(b"precious")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "another's":
        if os.geteuid():
            pytest.skip("only root makes another user's file")
        place.write_bytes(b"precious")
        os.chown(place, 4321, 4321)
    else:
        place.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(OSError):
        LineLog(place, {})
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    if kind == "another's":
        assert place.read_bytes() == b"precious"


def test_a_log_goes_on_behind_a_line_that_was_cut(tmp_path: Path):
    place = tmp_path / "new" / "run.jsonl"
    for _ in range(2):
        log = LineLog(place, {"run": "a"})
        log.write({"n": 1})
        log.close()
        with place.open("a") as file:
            file.write("cut")
    whole = '{"run": "a", "n": 1}\n'
    assert place.read_text() == f"{whole}cut\n{whole}cut"
