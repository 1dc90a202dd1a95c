"""A PostgreSQL server for studies of several hosts, from the system's packages.

    python -m autoloader.tune.shared.postgres DIR [--host NAME] [--port N]

makes a database in DIR (or takes the one there), prints its storage URL, and runs until it is
interrupted. Every connection needs the password in that URL, which lies in ``DIR/password`` too.

PostgreSQL refuses to run as root; started by root, it runs as ``postgres`` or else ``nobody``, who
then owns ``DIR/data``.

Not here: what lies in the database (``tune.storage``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autoloader.errors import AutoloaderError, UsageError

USER = "autoloader"
_PORT = 5432
_START_S = 60
_LOG_LINES = 5
_PLACES = ("/usr/lib/postgresql", "/usr/pgsql-*", "/opt/homebrew/opt/postgresql*")


def find_program(name: str) -> Path:
    """``initdb`` or ``pg_ctl``: on the path, else where distributions put the newest version.

    Raises:
        UsageError: it is not installed.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    for place in _PLACES:
        root = Path(place)
        bins = [one for one in root.parent.glob(f"{root.name}/*/bin") if (one / name).is_file()]
        bins += [one for one in root.parent.glob(f"{root.name}/bin") if (one / name).is_file()]
        if bins:
            return max(bins, key=lambda one: one.parts) / name
    raise UsageError(
        f"there is no {name} on this machine",
        remedy="install PostgreSQL, on Debian and Ubuntu: apt install postgresql; or name the "
        "storage of a server elsewhere",
    )


def owner() -> pwd.struct_passwd | None:
    """Whom the server runs as; ``None``: this process's own user will do.

    Raises:
        UsageError: this is root, and there is no other user to run as.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise UsageError(
        "PostgreSQL refuses to run as root, and there is no user postgres nor nobody",
        remedy="run this command as another user",
    )


@contextlib.contextmanager
def server(folder: Path, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """A running server, as the storage URL that reaches it.

    Args:
        folder: where its data lies, made where it is missing.
        host: the name or address it listens at, and that is in the URL.
        port: 0 takes a free one.

    Raises:
        UsageError: PostgreSQL is not installed, may not run here, or does not start; its last
            lines are in the message.
    """
    find_program("pg_ctl")
    user = owner()
    data, log = folder / "data", folder / "log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _be_reached_by(folder, user)
        password = _password(folder)
        if not (data / "PG_VERSION").is_file():
            _make(data, password, user)
        port = port or _free_port(host)
        listens = shlex.join(["-p", str(port), "-h", host, "-k", ""])
        with log.open("ab") as into:
            started = _control("start", data, user, "-t", str(_START_S), "-o", listens, into=into)
    except OSError as error:
        raise UsageError(
            f"no PostgreSQL in {folder}: {error}",
            remedy="name a folder that can be written, also by the user it runs as",
        ) from error
    if not started:
        raise UsageError(
            f"PostgreSQL did not start at {host}:{port}: {_last(log.read_text(errors='replace'))}",
            remedy=f"mend what it says ({log} has the rest), or name an address of this machine "
            "with --host",
        )
    try:
        yield f"postgresql://{USER}:{password}@{host}:{port}/postgres"
    finally:
        if not _control("stop", data, user, "-m", "fast", "-t", "20"):
            _control("stop", data, user, "-m", "immediate")


def _control(
    action: str, data: Path, user: pwd.struct_passwd | None, *options: str, into: Any = None
) -> bool:
    """Have ``pg_ctl`` do it, and wait until it is done; whether that went well."""
    done = subprocess.run(
        [str(find_program("pg_ctl")), action, "-D", str(data), "-w", *options],
        stdin=subprocess.DEVNULL,
        stdout=into or subprocess.DEVNULL,
        stderr=into or subprocess.DEVNULL,
        cwd=data.parent,
        check=False,
        **_as(user),
    )
    return done.returncode == 0


def _make(data: Path, password: str, user: pwd.struct_passwd | None) -> None:
    told = data.parent / "initdb-password"
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password + "\n")
    try:
        if user is not None:
            os.chown(told, user.pw_uid, user.pw_gid)
        data.mkdir(exist_ok=True)
        data.chmod(0o700)
        if user is not None:
            os.chown(data, user.pw_uid, user.pw_gid)
        command = [str(find_program("initdb")), "-D", str(data), "-U", USER, "-E", "UTF8"]
        command += ["--locale", "C", "-A", "scram-sha-256", "--pwfile", str(told), "--no-sync"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=data.parent, check=False, **_as(user)
        )
    finally:
        told.unlink(missing_ok=True)
    if done.returncode:
        raise UsageError(
            f"initdb failed: {_last(done.stderr or done.stdout)}",
            remedy=f"empty {data}, or name another folder",
        )


def _password(folder: Path) -> str:
    """The password of the server there, made with it."""
    path = folder / "password"
    if path.is_file():
        return path.read_text().strip()
    password = secrets.token_urlsafe(18)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password + "\n")
    return password


def _be_reached_by(folder: Path, user: pwd.struct_passwd | None) -> None:
    """Let the server's user pass through the folder, where this is root's.

    Raises:
        UsageError: it may not pass through a folder above.
    """
    if user is None:
        return
    folder.chmod(folder.stat().st_mode | 0o011)
    for above in folder.resolve().parents:
        seen = above.stat()
        if seen.st_uid != user.pw_uid and not seen.st_mode & 0o001:
            raise UsageError(
                f"the server runs as {user.pw_name}, since PostgreSQL refuses to run as root, and "
                f"{user.pw_name} may not pass through {above}",
                remedy=f"name a folder elsewhere, such as /var/tmp/studies, or `chmod o+x {above}`",
            )


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Arguments of a child that runs as ``user``."""
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as one:
        return int(one.getsockname()[1])


def _last(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-_LOG_LINES:]) or "it said nothing"


def main(words: Sequence[str] | None = None) -> int:
    """Run a server until it is interrupted; 2 where it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m autoloader.tune.shared.postgres")
    parser.add_argument("folder", type=Path, help="where its data lies")
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine to listen at")
    parser.add_argument("--port", type=int, default=_PORT, help="0 takes a free one")
    chosen = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with server(chosen.folder.absolute(), host=chosen.host, port=chosen.port) as url:
            with contextlib.suppress(KeyboardInterrupt):
                sys.stdout.write(f"{url}\n")
                sys.stdout.flush()
                sys.stderr.write("running; Ctrl-C ends it\n")
                signal.pause()
            for one in (signal.SIGINT, signal.SIGTERM):  # it ends; a second one would cut that off
                signal.signal(one, signal.SIG_IGN)
    except AutoloaderError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
