"""Datasets of the Hugging Face Hub: ``hf://datasets/ORG/NAME[@REVISION]/…``.

The token and the hub's address are those of ``huggingface_hub`` (``HF_TOKEN``, ``HF_ENDPOINT``). A
file's version is the hash of its content, which the hub tells with each answer.

Not here: the connections (``storage.clients.web``).
"""

from __future__ import annotations

import errno
import json
import re
from urllib.parse import quote, urlsplit

from autoloader.storage import faults
from autoloader.storage.clients.client import RemoteIdentity, of_entry
from autoloader.storage.clients.web import Answer, Request, WebClient
from autoloader.storage.faults import Meter

_PATH = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


class HuggingFaceClient(WebClient):
    """The Hugging Face Hub; see ``storage.clients.client.Client``."""

    lists = True

    def __init__(self) -> None:
        super().__init__()
        from huggingface_hub import constants, get_token

        self._hub = str(constants.ENDPOINT).rstrip("/")
        self._token = get_token

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with their versions, directories with ``None``."""
        repository, revision, inside = _parts(directory)
        address: str | None = f"{self._hub}/api/datasets/{repository}/tree/{revision}/{inside}"
        names: dict[str, RemoteIdentity | None] = {}
        while address:
            headers = self._authorised() if urlsplit(address)[:2] == urlsplit(self._hub)[:2] else {}
            answer = self._answered(Request("GET", address, directory, meter, headers))
            for one in json.loads(answer.body):
                large = one.get("lfs") or {}
                name = str(one["path"]).rpartition("/")[2]
                entry = {"size": one.get("size"), "ETag": large.get("oid") or one.get("oid")}
                names[name] = of_entry(entry) if one["type"] == "file" else None
            meter.named(len(names))
            more = _NEXT.search(answer.headers.get("Link") or "")
            address = more[1] if more else None
        return names

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """The version of a file now."""
        directory, _, name = path.rpartition("/")
        found = self.listing(directory, meter).get(name)
        if found is None:
            raise faults.missing(path)
        return found

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """Refuse: a file of the Hub is written by a commit of its owner."""
        raise OSError(errno.EROFS, "put it on the hub with `hf upload`", path)

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[str, dict[str, str]]:
        repository, revision, inside = _parts(path)
        return f"{self._hub}/datasets/{repository}/resolve/{revision}/{inside}", self._authorised()

    def _authorised(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _is_another(self, answer: Answer, of: RemoteIdentity) -> bool:
        hub = answer.sent_on_by if answer.sent_on_by is not None else answer.headers
        tag = hub.get("X-Linked-ETag") or hub.get("ETag") or ""
        found = tag.removeprefix("W/").strip('"')
        return bool(found) and found != of.tag


def _parts(path: str) -> tuple[str, str, str]:
    """Repository, revision and the path inside, as an address has them."""
    found = _PATH.fullmatch(path.rstrip("/"))
    if found is None:
        raise faults.NoFileSystemError(
            errno.EPROTONOSUPPORT, "it is not hf://datasets/ORGANISATION/NAME/…", path
        )
    revision = quote(found[2] or "main", safe="")
    return found[1], revision, quote(found[3] or "")
