"""Any other of fsspec's clients, by what all of them have.

A version is not pinned: it is compared before a shard is published.

Not here: schemes whose requests are made here (the other clients).
"""

from __future__ import annotations

from typing import Any

from autoloader.remote import faults
from autoloader.remote.clients.meaning import meant
from autoloader.remote.identity import RemoteIdentity, of_entry
from autoloader.remote.limits import Meter


class FsspecClient:
    """See ``remote.clients.client.Client``.

    Args:
        scheme: of the client.
    """

    lists = True

    def __init__(self, scheme: str) -> None:
        import fsspec

        self._fs: Any = fsspec.filesystem(scheme, skip_instance_cache=True)

    def listing(
        self, directory: str, meter: Meter | None = None
    ) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``."""
        del meter
        return {
            str(entry["name"]).rstrip("/").rpartition("/")[2]: of_entry(entry)
            if entry["type"] == "file"
            else None
            for entry in self._ask(directory, "ls", detail=True)
        }

    def identity(self, path: str, meter: Meter | None = None) -> RemoteIdentity:
        """See ``Client.identity``."""
        del meter
        return of_entry(self._ask(path, "info"))

    def read_into(
        self,
        path: str,
        start: int,
        view: memoryview,
        of: RemoteIdentity,
        meter: Meter | None = None,
    ) -> None:
        """See ``Client.read_into``."""
        del of
        if meter is not None:
            meter.promised(len(view))
        data: bytes = self._ask(path, "cat_file", start=start, end=start + len(view))
        if len(data) != len(view):
            raise faults.cut_off(path)
        view[:] = data

    def whole(
        self, path: str, of: RemoteIdentity | None, meter: Meter | None = None
    ) -> tuple[RemoteIdentity, bytes]:
        """See ``Client.whole``."""
        of = of or self.identity(path, meter)
        content = bytearray(of.size)
        if content:
            self.read_into(path, 0, memoryview(content), of, meter)
        return of, bytes(content)

    def write(self, path: str, content: bytes) -> None:
        """See ``Client.write``."""
        self._ask(path, "pipe_file", value=content)

    def _ask(self, path: str, question: str, **how: Any) -> Any:
        with meant(path):
            self._fs.invalidate_cache()
            return getattr(self._fs, question)(path, **how)
