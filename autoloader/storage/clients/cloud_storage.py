"""Google Cloud Storage (``gs://``): gcsfs's addresses and credentials.

A request names the generation of its object.

Not here: the connections (``storage.clients.web``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from autoloader.storage.clients.client import RemoteIdentity, of_entry
from autoloader.storage.clients.web import Answer, Request, WebClient, finding_credentials
from autoloader.storage.faults import Meter

_FIELDS = "name,size,generation,crc32c"


class CloudStorageClient(WebClient):
    """Google Cloud Storage; see ``storage.clients.client.Client``."""

    lists = True

    def __init__(self) -> None:
        super().__init__()
        if "GCE_METADATA_HOST" not in os.environ:  # elsewhere each start would wait for a server
            os.environ.setdefault("NO_GCE_CHECK", "true")
        from gcsfs.core import GCSFileSystem

        self._fs: Any = GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with their versions, directories with ``None``."""
        prefix = directory.partition("://")[2].partition("/")[2].rstrip("/")
        prefix = f"{prefix}/" if prefix else ""
        asked = {
            "prefix": prefix,
            "delimiter": "/",
            "fields": f"prefixes,nextPageToken,items({_FIELDS})",
        }
        names: dict[str, RemoteIdentity | None] = {}
        while True:
            page = self._json(directory, "/o", asked, meter)
            for one in page.get("prefixes", ()):
                names[one[len(prefix) : -1]] = None
            for one in page.get("items", ()):
                if name := one["name"][len(prefix) :]:
                    names[name] = of_entry({**one, "size": int(one["size"])})
            meter.named(len(names))
            if not page.get("nextPageToken"):
                return names
            asked["pageToken"] = page["nextPageToken"]

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """The version of a file now."""
        name = path.partition("://")[2].partition("/")[2]
        found = self._json(path, f"/o/{quote(name, safe='')}", {"fields": _FIELDS}, meter)
        return of_entry({**found, "size": int(found["size"])})

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """Write a small file."""
        bucket, _, name = path.partition("://")[2].partition("/")
        base = self._fs.base.replace("/storage/", "/upload/storage/")
        asked = urlencode({"uploadType": "media", "name": name})
        address = f"{base}b/{bucket}/o?{asked}"
        self._answered(Request("POST", address, path, meter, self._authorised(path), content))

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[str, dict[str, str]]:
        return self._fs.url(path, generation=of and of.number), self._authorised(path)

    def _authorised(self, path: str) -> dict[str, str]:
        headers: dict[str, str] = {}
        with finding_credentials(path):
            self._fs.credentials.apply(headers)
        return headers

    def _is_another(self, answer: Answer, of: RemoteIdentity) -> bool:
        found = answer.headers.get("x-goog-generation")
        return found is not None and int(found) != of.number

    def _json(self, path: str, what: str, asked: Mapping[str, str], meter: Meter) -> Any:
        """An answer of the JSON interface about objects in a path's bucket."""
        address = f"{self._fs.base}b/{urlsplit(path).netloc}{what}?{urlencode(asked)}"
        request = Request("GET", address, path, meter, self._authorised(path))
        return json.loads(self._answered(request).body)
