"""Datasets by their id on the Hugging Face Hub: copies on this disk, and a Hub of our own."""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import rlds_files
import yaml
from command_lines import Cli
from http_answers import Answering, answering
from huggingface_hub import constants
from lerobot_files import LeRobotFiles

from autoloader import AutoLoader, PipelineSpec, SourceError, SpecError
from autoloader.cli.app import main
from autoloader.formats import DatasetFormat, open_source, sources
from autoloader.formats.hub import located
from autoloader.process.arguments import spec_of
from autoloader.storage.clients import client as clients
from autoloader.storage.store import store

pytestmark = pytest.mark.usefixtures("one_child")

FILES = LeRobotFiles(lengths=(6, 5))
REAL = Path(__file__).parents[2].parent / "shared/data/g1_lerobot_v21"
SHA, OLD = "c" * 40, "a" * 40
HELD: dict[str, Any] = {"ram_floor": "64MiB", "output": "numpy", "isolation": "thread"}


@dataclass
class Hub:
    """A Hub with what lies below a folder, each dataset in one revision.

    Attributes:
        folder: holds ORG/NAME.
        address: of the server.
        status: the answer to every request; 0: the right one.
        asked: path of each request.
    """

    folder: Path
    address: str = ""
    status: int = 0
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hub of this test, and empty caches of the Hub and of LeRobot."""
    served = Hub(tmp_path / "served")

    class Handler(Answering, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(unquote(self.path))
            if parts.path == "/api/agent-harnesses":  # of huggingface_hub, once a day
                self.answer(404)
                return
            served.asked.append(parts.path)
            words = parts.path.strip("/").removeprefix("api/").removeprefix("datasets/").split("/")
            root = served.folder / words[0] / words[1]
            revision = words[3] if words[3:] else SHA
            if served.status:
                self.answer(served.status)
            elif not root.is_dir():
                self.answer(404, X_Error_Code="RepoNotFound")
            elif revision not in (SHA, "main"):
                self.answer(404, X_Error_Code="RevisionNotFound")
            elif words[2:3] == ["tree"]:
                recursive = parse_qs(parts.query).get("recursive", ["False"])[0].lower() == "true"
                found = root.joinpath(*words[4:])
                if not found.is_dir():
                    self.answer(404, X_Error_Code="EntryNotFound")
                    return
                below = sorted(found.rglob("*") if recursive else found.iterdir())
                self.answer(200, json.dumps([entry(one, root) for one in below]).encode())
            elif words[2:3] == ["resolve"]:
                content = root.joinpath(*words[4:]).read_bytes()
                first, last = (self.headers.get("Range") or "bytes=0-")[6:].split("-")
                part = content[int(first) : int(last) + 1 if last else None]
                span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
                tag = {"ETag": f'"{hashed(content)}"', "X_Repo_Commit": SHA}
                self.answer(200 if part == content else 206, part, Content_Range=span, **tag)
            else:
                files = [one for one in sorted(root.rglob("*")) if one.is_file()]
                names = [{"rfilename": str(one.relative_to(root)), "size": one.stat().st_size}
                         for one in files]  # fmt: skip
                found = {"id": "/".join(words[:2]), "sha": SHA, "siblings": names}
                self.answer(200, json.dumps(found).encode())

        do_HEAD = do_GET  # noqa: N815  (http.server calls it by this name)

    for name in ("HF_HUB_CACHE", "HF_LEROBOT_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "64MiB")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"))
    monkeypatch.setattr(clients, "_clients", {})
    monkeypatch.setattr(store, "_listings", {})
    monkeypatch.chdir(tmp_path)
    with answering(Handler) as served.address:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        at = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", at)
        yield served


def hashed(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def entry(path: Path, root: Path) -> dict[str, Any]:
    own = {"path": str(path.relative_to(root)), "oid": "0" * 40}
    if path.is_dir():
        return {"type": "directory", **own}
    content = path.read_bytes()
    return {"type": "file", **own, "size": len(content), "oid": hashed(content)}


def snapshot(cache: Path, *commits: str, refs: dict[str, str]) -> Path:
    """A repository in a cache of the Hub."""
    home = cache / "datasets--lab--arm"
    for commit in commits:
        FILES.write(home / "snapshots" / commit)
    (home / "refs").mkdir()
    for ref, commit in refs.items():
        (home / "refs" / ref).write_text(commit)
    return home / "snapshots"


def path_of_init(cli: Cli, *words: str) -> tuple[str, str]:
    """(path of the one dataset that init writes, what it notes)."""
    told = cli("init", *words)
    (dataset,) = yaml.safe_load(told.out)["datasets"]
    return dataset["path"], told.err


@pytest.mark.parametrize("cache", ["hf/hub", "hf/lerobot/hub"])
def test_a_copy_in_a_cache_is_taken_in_the_revision_that_is_asked_for(
    cache: str, hub: Hub, tmp_path: Path, cli: Cli
):
    found = snapshot(tmp_path / cache, SHA, OLD, refs={"main": SHA, "v2.1": OLD})
    for text, commit in (
        ("lab/arm", SHA), ("lab/arm@main", SHA), ("lab/arm@v2.1", OLD), (f"lab/arm@{OLD}", OLD),
        ("hf://datasets/lab/arm@v2.1", OLD),
    ):  # fmt: skip
        path, notes = path_of_init(cli, text)
        assert path == str(found / commit)
        assert notes.count("taken from") == 1
    assert "the Hub has no such dataset" in cli("init", "lab/arm@v9", code=4).err
    assert hub.asked == ["/api/datasets/lab/arm/revision/v9"]


def test_a_copy_of_lerobots_own_is_taken(
    hub: Hub, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    root = FILES.write(tmp_path / "robots/lab/arm")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "robots"))
    assert path_of_init(cli, "lab/arm")[0] == str(root)
    assert hub.asked == []


def test_a_folder_of_that_name_wins_and_this_is_said_once(hub: Hub, tmp_path: Path, cli: Cli):
    snapshot(tmp_path / "hf/hub", SHA, refs={"main": SHA})
    root = FILES.write(tmp_path / "lab/arm")
    path, notes = path_of_init(cli, "lab/arm")
    assert path == str(root)
    words = "reading the folder lab/arm (write hf://datasets/lab/arm for the Hub's)"
    assert notes.count(words) == 1
    assert path_of_init(cli, "hf://datasets/lab/arm")[0] != str(root)
    assert hub.asked == []


def test_a_folder_is_read_without_a_word_where_no_copy_has_its_name(
    hub: Hub, tmp_path: Path, cli: Cli
):
    root = FILES.write(tmp_path / "data/arm")
    path, notes = path_of_init(cli, "data/arm")
    assert path == str(root)
    assert "Hub" not in notes
    assert hub.asked == []


def test_a_lerobot_dataset_is_fetched_once_and_a_copy_without_its_data_is_completed(
    hub: Hub, tmp_path: Path, cli: Cli
):
    FILES.write(hub.folder / "lab/arm")
    (hub.folder / "lab/arm/weights.bin").write_bytes(b"not of the dataset")
    shutil.copytree(hub.folder / "lab/arm/meta", tmp_path / "hf/lerobot/lab/arm/meta")
    path, notes = path_of_init(cli, "lab/arm")
    assert path == str(tmp_path / f"hf/hub/datasets--lab--arm/snapshots/{SHA}")
    assert "lab/arm: fetching " in notes
    assert not (Path(path) / "weights.bin").exists()
    del hub.asked[:]
    assert spec_of("lab/arm").datasets[0].path == path
    with AutoLoader("lab/arm", batch_size=4, **HELD) as loader:
        batch = next(iter(loader))
    assert batch["action"].shape == (4, 1, 3)
    assert hub.asked == []


class Takes(DatasetFormat):
    """A format of which nothing but its folders is asked."""

    hub_folders = ("clips/",)


def test_a_format_says_which_folders_are_fetched_with_its_marker(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    for name in ("takes.json", "clips/one.mp4", "notes.txt"):
        file = hub.folder / "lab/takes" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}")
    monkeypatch.setitem(sources.BUILT_IN, "takes", ("takes.json", f"{__name__}:Takes"))
    found = Path(located("lab/takes", print))
    files = sorted(str(one.relative_to(found)) for one in found.rglob("*") if one.is_file())
    assert files == ["clips/one.mp4", "takes.json"]


def test_a_loader_of_an_id_or_a_folder_has_the_spec_that_init_writes(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    found = snapshot(tmp_path / "hf/hub", SHA, refs={"main": SHA})
    assert main(["init", "lab/arm", "-o", "mix.yaml"]) == 0
    written = PipelineSpec.from_yaml("mix.yaml")
    with caplog.at_level(logging.WARNING):
        assert spec_of("lab/arm") == spec_of(found / SHA) == spec_of(str(found / SHA)) == written
    assert "were guessed; check them" in caplog.text
    with AutoLoader("lab/arm", batch_size=3, **HELD) as loader:
        assert loader.plan.mixture.spec == written.with_batch_size(3)
    assert hub.asked == []


@pytest.mark.skipif(not REAL.is_dir(), reason=f"there is no {REAL}")
def test_a_real_dataset_trains_by_its_id(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "lerobot/unitree/g1"
    shutil.copytree(REAL / "meta", root / "meta")
    for name in ("data", "videos"):
        (root / name).symlink_to(REAL / name)
    episodes = (REAL / "meta/episodes.jsonl").read_text().splitlines()
    there = [one for one in episodes if json.loads(one)["episode_index"] not in (0, 3)]
    (root / "meta").chmod(0o755)
    (root / "meta/episodes.jsonl").unlink()
    (root / "meta/episodes.jsonl").write_text("\n".join(there))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    with AutoLoader("unitree/g1", batch_size=4, **HELD) as loader:
        batch = next(iter(loader))
    assert {len(frames) for frames in batch["images"].values()} == {4}
    assert all(batch["language"])
    assert hub.asked == []


def test_another_dataset_is_read_at_its_address_in_the_revision_of_now(hub: Hub):
    rlds_files.write_dataset(
        hub.folder / "lab", [[rlds_files.episode(0, 6), rlds_files.episode(1, 5)]]
    )
    with AutoLoader("lab/robot@main", batch_size=4, **HELD) as loader:
        (dataset,) = loader.plan.mixture.spec.datasets
        assert dataset.path == f"hf://datasets/lab/robot@{SHA}/1.0.0"
        assert len(next(iter(loader))["language"]) == 4


@pytest.mark.parametrize(
    ("status", "name", "why"),
    [
        (0, "lab/nothing", "no such dataset, or a private one → check the spelling, or run `hf"),
        (0, "lab/arm@v9", "the Hub has no such revision → check the part behind @"),
        (503, "lab/arm", "the Hub cannot be reached (HfHubHTTPError) → check the network"),
        (None, "lab/arm", "the Hub cannot be reached (ConnectError) → check the network"),
        (None, "hf://datasets/lab/arm", "(ConnectError) → check the network"),
    ],
)
def test_what_the_hub_does_not_give_is_told_in_the_first_line_after_one_request(
    status: int | None, name: str, why: str, hub: Hub, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    FILES.write(hub.folder / "lab/arm")
    hub.status = status or 0
    if status is None:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    told = " ".join(cli("init", name, code=4).err.split())
    assert told.startswith(f"error: {name.removeprefix('hf://datasets/')}: no folder of this name")
    assert why in told
    with pytest.raises(SourceError, match="no complete copy in the Hub's cache"):
        AutoLoader(name, **HELD)
    assert len(hub.asked) == (0 if status is None else 2)


def test_offline_by_request_the_hub_is_not_asked(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    part = FILES.write(tmp_path / "hf/lerobot/lab/arm")
    shutil.rmtree(part / "videos")
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE forbids asking the Hub") as caught:
        AutoLoader("lab/arm", **HELD)
    assert caught.value.remedy.startswith("unset HF_HUB_OFFLINE")
    assert str(part) in caught.value.remedy
    assert hub.asked == []


def test_a_dataset_that_does_not_fit_on_the_disk_is_not_fetched(
    hub: Hub, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    FILES.write(hub.folder / "lab/arm")
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "900TB")
    assert " must be fetched, and " in cli("init", "lab/arm", code=4).err
    assert hub.asked == ["/api/datasets/lab/arm"]


def test_buckets_and_lance_tables_are_refused_by_name_with_how_to_convert(
    hub: Hub, tmp_path: Path, cli: Cli
):
    told = cli("init", "hf://buckets/lab/arm", code=2).err
    assert "hf buckets sync hf://buckets/lab/arm FOLDER" in told
    bucket = {"name": "arm", "path": "hf://buckets/lab/arm", "images": {"top": "top"}}
    with pytest.raises(SpecError, match="Storage Buckets"):
        AutoLoader({"datasets": [bucket], "cameras": {"top": {"size": [8, 8]}}}, **HELD)
    tables = LeRobotFiles(lengths=(4,), info={"storage_format": "lance"}).write(tmp_path / "tables")
    assert "holds Lance tables" in cli("init", tables, code=4).err
    with pytest.raises(SourceError, match="holds Lance tables") as caught:
        open_source(tables, dataset="tables")
    assert "LeRobotDataset.create" in caught.value.remedy
    assert hub.asked == []
