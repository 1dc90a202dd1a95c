"""Small documents in the user's cache: the one that was saved, or none."""

import logging
import os
from pathlib import Path

import pytest

from autoloader.formats import cache as cache_module
from autoloader.formats.cache import JsonCache

DOCUMENT = {"mean": [0.25, 1.5], "count": 12}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonCache:
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_unread", set())
    return JsonCache("things", version=1)


def place_of(cache: JsonCache) -> Path:
    cache.save("key", DOCUMENT)
    return cache._path("key")


def test_a_document_is_found_under_its_key_alone(cache: JsonCache):
    place_of(cache)
    assert cache.load("key") == DOCUMENT
    assert cache.load("other") is None
    assert JsonCache("things", version=2).load("key") is None


@pytest.mark.parametrize("flipped", [0x01, 0x80])
def test_no_damaged_byte_gives_another_document(cache: JsonCache, flipped: int):
    place = place_of(cache)
    whole = place.read_bytes()
    for at in range(len(whole)):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :])
        assert cache.load("key") is None
    place.write_bytes(whole)
    assert cache.load("key") == DOCUMENT


def test_what_is_no_document_is_none(cache: JsonCache, monkeypatch: pytest.MonkeyPatch):
    place = place_of(cache)
    deep = b"[" * 100_000
    monkeypatch.setattr(cache_module, "_MOST_BYTES", 200_000)
    for content in (b"", b"\n", deep, cache_module._checksum(deep) + b"\n" + deep, bytes(300_000)):
        place.write_bytes(content)
        assert cache.load("key") is None
    cache.save("key", DOCUMENT)
    assert cache.load("key") == DOCUMENT


def test_a_link_in_a_documents_place_gives_way_and_its_target_is_left(
    cache: JsonCache, tmp_path: Path
):
    place = place_of(cache)
    target = tmp_path / "precious"
    target.write_bytes(place.read_bytes())
    place.unlink()
    place.symlink_to(target)
    assert cache.load("key") is None
    cache.save("key", {"other": 1})
    assert cache.load("key") == {"other": 1}
    assert b"mean" in target.read_bytes()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_have_written_is_not_read_and_that_is_said_once(
    cache: JsonCache, caplog: pytest.LogCaptureFixture, what: str
):
    place = place_of(cache)
    (place if what == "file" else place.parent).chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert [cache.load("key") for _ in range(3)] == [None] * 3
    assert caplog.text.count("others may write to it: chmod go-w") == 1


def test_what_a_process_left_that_was_killed_a_day_ago_goes_with_the_next_document(
    cache: JsonCache, tmp_path: Path
):
    folder = tmp_path / "cache/things"
    folder.mkdir(parents=True)
    old, new = folder / ".a.json.0.tmp", folder / ".b.json.0.tmp"
    for one in (old, new):
        one.touch()
    os.utime(old, (0, 0))
    place_of(cache)
    assert (old.exists(), new.exists()) == (False, True)
