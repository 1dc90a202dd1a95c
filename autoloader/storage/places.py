"""Where files lie: which addresses a client opens, and the user's cache directory.

It imports next to nothing: every process asks.

Not here: the clients (``storage.clients``).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import platformdirs

from autoloader.errors import SpecError
from autoloader.host.extras import is_installed
from autoloader.host.units import GIB, expanded, parse_floor


class ClientOf(NamedTuple):
    """Everything that is known of a scheme without its client.

    Attributes:
        package: package that must be installed.
        client: module of ``storage.clients``, and its class in that module.
        credentials: where the client finds credentials, for messages.
        access: remedy where access is refused; "": the right, or the credentials.
        refusal: error that the package raises where it has no credentials; "": it raises none.
        by_host: whether each host has a client of its own.
        streamed: whether TensorFlow opens the scheme, so that the data can be streamed.
    """

    package: str
    client: str
    credentials: str = ""
    access: str = ""
    refusal: str = ""
    by_host: bool = False
    streamed: bool = False


CLIENTS: Mapping[str, ClientOf] = {
    "file": ClientOf("os", "mounts:MountClient"),
    "gs": ClientOf(
        "gcsfs",
        "cloud_storage:CloudStorageClient",
        "what `gcloud auth` or the environment says",
        "check the bucket's name; what is not public needs credentials: gcloud auth "
        "application-default login, or a key file named by GOOGLE_APPLICATION_CREDENTIALS "
        "(on a Google Cloud machine NO_GCE_CHECK=false asks for its service account)",
        refusal="GoogleAuthError",
        streamed=True,
    ),
    "s3": ClientOf("botocore", "s3:S3Client", "~/.aws", refusal="BotoCoreError"),
    "hf": ClientOf("huggingface_hub", "hugging_face:HuggingFaceClient", "HF_TOKEN"),
    "https": ClientOf("http", "web:WebClient", "~/.netrc", by_host=True),
    "http": ClientOf("http", "web:WebClient", "~/.netrc", by_host=True),
}
"""Scheme → its client."""

FLOOR_VARIABLE = "AUTOLOADER_DISK_FLOOR"
"""Environment variable: bytes that stay free on the cache's disk, such as "50GB", unless a loader
has its own ``disk_floor``."""
DISK_FLOOR_BYTES = 10 * GIB
"""Bytes that stay free by default."""


def disk_floor_of_environment() -> int:
    """Bytes that stay free on the cache's disk where no loader says.

    Raises:
        UsageError: the environment says no floor.
    """
    floor = os.environ.get(FLOOR_VARIABLE)
    return parse_floor(floor, name=FLOOR_VARIABLE) if floor else DISK_FLOOR_BYTES


def cache_root() -> Path:
    """``AUTOLOADER_CACHE_DIR`` if set, else the user's cache directory."""
    own = os.environ.get("AUTOLOADER_CACHE_DIR")
    return expanded(own) if own else platformdirs.user_cache_path("autoloader")


SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/+", re.IGNORECASE)


def scheme_of(path: str) -> str:
    """The scheme of "gs://bucket", which is "gs"; "" of a local path."""
    found = SCHEME.match(path)
    return found[1].lower() if found else ""


def has_client(path: str) -> bool:
    """True if a client for a path's scheme is installed; imports nothing."""
    known = CLIENTS.get(scheme_of(path))
    return known is not None and _installed(known.package)


@functools.cache
def _installed(package: str) -> bool:
    return is_installed(package)


def check_address(path: str) -> None:
    """Refuse an address that holds a secret, or names a bucket of the Hugging Face Hub.

    Raises:
        SpecError: the address holds a user, a password or a query, or is ``hf://buckets/…``.
    """
    if path.startswith("hf://buckets/"):
        raise SpecError(
            f"path: {path}: Storage Buckets of the Hugging Face Hub are not supported",
            remedy=f"run `hf buckets sync {'/'.join(path.split('/')[:5])} FOLDER`, and give that "
            "folder; or put the data into a dataset of the Hub: `hf upload ORG/NAME FOLDER "
            "--repo-type dataset`",
        )
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") and (parts.username or parts.password or parts.query):
        bare = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        raise SpecError(
            f"path: {bare} has a user, a password or a query, which logs and files would show",
            remedy="give the address without them; the client finds credentials by itself"
            + (f": {CLIENTS[parts.scheme].credentials}" if parts.scheme in CLIENTS else ""),
        )
