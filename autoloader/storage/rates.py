"""How fast a store has given bytes to this machine, for whoever plans the next run.

The rate counts the time in which at least one request was under way, whatever it waited for. It is
kept in the cache directory when much has been fetched: little says more of latency.

Not here: the requests (``storage.store``).
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from autoloader.host.files import read_own, write_whole
from autoloader.storage.places import cache_root

MUCH_BYTES = 64 * 2**20


class Rates:
    """Measures the requests of this process; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self._found: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def measuring(self, host: str, nbytes: int) -> Iterator[None]:
        """A request for so many bytes is under way."""
        with self._lock:
            if not self._under_way.get(host):
                self._since_s[host] = time.monotonic()
            self._under_way[host] = self._under_way.get(host, 0) + 1
        came = 0
        try:
            yield
            came = nbytes
        finally:
            self._end(host, came)

    def _end(self, host: str, came: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._under_way[host] -= 1
            nbytes, seconds = self._found.get(host, (0, 0.0))
            nbytes, seconds = nbytes + came, seconds + now - self._since_s[host]
            self._since_s[host] = now
            enough = nbytes >= MUCH_BYTES
            self._found[host] = (0, 0.0) if enough else (nbytes, seconds)
        if enough:
            with contextlib.suppress(OSError):
                write_whole(_place(host), json.dumps(nbytes / max(seconds, 1e-3)), mode=0o600)


def known_rate(host: str) -> float | None:
    """Bytes a second that a host gave lately; ``None`` where little was fetched so far."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = float(json.loads(read_own(_place(host), 100)))
        return found if 0 < found < math.inf else None
    return None


def _place(host: str) -> Path:
    return cache_root() / "rates" / f"{sha256(host.encode()).hexdigest()[:40]}.json"
