"""Web servers of files: ``http://`` and ``https://``, with credentials from ``~/.netrc``.

Not here: the connections (``remote.clients.connections``).
"""

from __future__ import annotations

import contextlib
import errno
import netrc
import os
from collections.abc import Iterator, Mapping
from email.message import Message
from pathlib import Path
from urllib.parse import quote, urlsplit

from autoloader.storage import faults
from autoloader.storage.clients.connections import Answer, Connections, basic
from autoloader.storage.identity import RemoteIdentity, of_entry
from autoloader.storage.limits import Meter

_REFUSALS = {"GoogleAuthError", "BotoCoreError", "FileNotFoundError", "PermissionError"}


class WebClient:
    """A server of files; see ``remote.clients.client.Client``. Stores that speak HTTP build on it.

    Args:
        scheme: "http" or "https".
        certificates: see ``Connections``.
    """

    lists = False

    def __init__(self, scheme: str, certificates: str | None = None) -> None:
        del scheme
        self._connections = Connections(certificates)

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``; a server of files has none that can be trusted."""
        del meter
        raise faults.NoFileSystemError(errno.EOPNOTSUPP, "this server lists nothing", directory)

    def identity(self, path: str, meter: Meter) -> RemoteIdentity:
        """See ``Client.identity``."""
        return self._told(self._ask("HEAD", path, meter=meter))

    def read_into(
        self,
        path: str,
        start: int,
        view: memoryview,
        of: RemoteIdentity,
        meter: Meter,
    ) -> None:
        """See ``Client.read_into``."""
        whole = (start, len(view)) == (0, of.size)
        own = {} if whole else {"Range": f"bytes={start}-{start + len(view) - 1}"}
        answer = self._ask("GET", path, of, own, into=view, meter=meter)
        if answer.status == 200 and not whole:
            raise OSError(errno.EOPNOTSUPP, "the server gives no byte ranges", path)
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
        another = size.isdigit() and int(size) != of.size
        if another or answer.count != len(view) or self._is_another(answer, of):
            raise faults.changed(path)

    def whole(
        self, path: str, of: RemoteIdentity | None, meter: Meter
    ) -> tuple[RemoteIdentity, bytes]:
        """See ``Client.whole``; one request in any case."""
        if of is None:
            answer = self._ask("GET", path, meter=meter)
            return self._told(answer), answer.body
        content = bytearray(of.size)
        if content:
            self.read_into(path, 0, memoryview(content), of, meter)
        return of, bytes(content)

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """See ``Client.write``; a server of files takes none."""
        del content, meter
        raise OSError(errno.EROFS, "a server of files takes none; copy it there", path)

    def _ask(
        self,
        method: str,
        path: str,
        of: RemoteIdentity | None = None,
        own: Mapping[str, str] | None = None,
        *,
        into: memoryview | None = None,
        meter: Meter,
    ) -> Answer:
        """An answer about a file, of a version where one is given, that is no error."""
        address, headers = self._address(path, of)
        headers = {"Accept-Encoding": "identity", **headers, **(own or {})}
        answer = self._connections.ask(method, address, headers, path, into=into, meter=meter)
        return self._checked(answer, path, pinned=of is not None)

    def _checked(self, answer: Answer, path: str, *, pinned: bool = False) -> Answer:
        """An answer that is no error."""
        if answer.status == 416 or (answer.status == 404 and self.lists and pinned):
            raise faults.changed(path)  # it was there when it was listed
        if answer.status >= 300:
            raise faults.of_status(answer.status, path, answer.headers.get("Retry-After"))
        return answer

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[str, dict[str, str]]:
        """Where a file is asked for, and headers that say who asks and pin its version."""
        parts = urlsplit(path)
        own = _own_credentials(parts.hostname or "")
        address = parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl()
        return address, pin_header(of) | own

    def _told(self, answer: Answer) -> RemoteIdentity:
        """What the headers of a whole file say of it."""
        size = answer.headers.get("Content-Length")
        return of_entry({**_marks(answer.headers), "size": None if size is None else int(size)})

    def _is_another(self, answer: Answer, of: RemoteIdentity) -> bool:
        """Whether an answer is of another version."""
        marks = _marks(answer.headers)
        if not any(marks.values()):
            return False
        found = of_entry({**marks, "size": of.size})
        return (found.number, found.tag) != (of.number, of.tag)


@contextlib.contextmanager
def finding_credentials(path: str) -> Iterator[None]:
    """Within it a package looks for credentials; nothing of the text of its errors is kept."""
    try:
        yield
    except Exception as error:  # a package's own kinds, told apart by name
        name, kinds = type(error).__name__, {kind.__name__ for kind in type(error).__mro__}
        if kinds & _REFUSALS and "Transport" not in name:
            raise faults.refused(path) from None
        if kinds & {"ClientError", "OSError", "TransportError"}:
            raise faults.PassingError(f"the connection failed ({name})", path) from None
        raise


def pin_header(of: RemoteIdentity | None) -> dict[str, str]:
    """The header that has a request refused where the file is another version by now."""
    return {"If-Match": of.tag} if of is not None and of.tag else {}


def _marks(headers: Message) -> dict[str, str | None]:
    return {name: headers.get(name) for name in ("ETag", "Last-Modified")}


def _own_credentials(host: str) -> dict[str, str]:
    """What ``~/.netrc``, or the file that ``NETRC`` names, says of a host."""
    place = os.environ.get("NETRC") or Path("~/.netrc").expanduser()
    try:
        found = netrc.netrc(str(place)).authenticators(host)
    except (OSError, RuntimeError, netrc.NetrcParseError):
        return {}
    return {} if found is None else {"Authorization": basic(found[0], found[2] or "")}
