"""The environments of ``make compat``, and how each is made: by uv, from a package index.

uv keeps what it has fetched in its own cache, and links it. What PIP_* says does not reach it; its
own variables do: ``UV_FIND_LINKS``, ``UV_INDEX``, ``UV_TORCH_BACKEND=cpu``.

Not here: what is run in them (``compat.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installation import PINS, ROOT, requirements


@dataclass(frozen=True)
class Environment:
    """What is installed together.

    Attributes:
        name: of its folder, and on the command line.
        python: version of the interpreter; empty takes the one that runs this.
        extras: of ours.
        pins: requirements of other people, installed first; ours must fit to them.
        overrides: what stands above everything that packages ask for.
        oldest: the oldest versions that ``pyproject.toml`` allows, not the newest that are tested.
        tests: whether the fast tests run too.
    """

    name: str
    python: str = ""
    extras: tuple[str, ...] = ()
    pins: str = ""
    overrides: str = ""
    oldest: bool = False
    tests: bool = False


ENVIRONMENTS = (
    Environment("openpi", python="3.11", extras=("torch",), pins="openpi", overrides="openpi"),
    Environment("openvla", python="3.10", extras=("torch",), pins="openvla"),
    Environment("oldest", python="3.10", oldest=True, tests=True),
    Environment("oldest-extras", "3.10", extras=("all",), pins="oldest-extras", oldest=True),
    *(Environment(f"python{version}", version, tests=True) for version in ("3.10", "3.12", "3.13")),
    *(
        Environment(extra, extras=(extra,))
        for extra in ("torch", "lightning", "stream", "tune", "report", "metrics", "lerobot", "jax")
    ),
)
"""Other people's pins; both ends of what ``pyproject.toml`` allows; each extra alone."""

TEST_TOOLS = ("hypothesis", "pytest", "pyyaml")
"""What the fast tests need besides; always the tested versions."""


@dataclass(frozen=True)
class Workshop:
    """A folder with uv, our wheel, and the environments.

    Raises:
        subprocess.CalledProcessError: uv, or the build, says no; what it says is shown.
    """

    folder: Path

    def uv(self, *words: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run uv, which is installed on first use."""
        home = self.folder / "uv"
        if not (home / "bin/uv").exists():
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            subprocess.run([home / "bin/pip", "install", "--quiet", "uv"], check=True)
        limits = {"UV_HTTP_TIMEOUT": "300"}
        command = [str(home / "bin/uv"), *map(str, words)]
        how = {"check": True, "text": True, "env": {**limits, **os.environ}, **how}
        return subprocess.run(command, **how)

    def has_python(self, version: str) -> bool:
        """Whether such an interpreter is on this machine, or can be fetched."""
        asked = (("python", "find", version), ("python", "install", "--quiet", version))
        quiet = {"check": False, "capture_output": True}
        return any(self.uv(*words, **quiet).returncode == 0 for words in asked)

    def packages(self, python: Path) -> list[str]:
        """What an environment holds, as ``name==version``."""
        words = ("pip", "freeze", "--quiet", "--python", python)
        lines = self.uv(*words, capture_output=True).stdout.splitlines()
        return [line for line in lines if line.count("==") == 1]

    def wheel(self) -> Path:
        """Our wheel, built anew."""
        place = self.folder / "wheel"
        shutil.rmtree(place, ignore_errors=True)
        self.uv("build", "--quiet", "--wheel", "--out-dir", place, ROOT)
        (found,) = place.glob("autoloader_rlds-*.whl")
        return found

    def make(self, one: Environment, wheel: Path) -> Path:
        """Make an environment anew; its interpreter."""
        place = self.folder / one.name
        python = place / "bin/python"
        self.uv("venv", "--quiet", "--clear", "--python", one.python or sys.executable, place)
        install = ["pip", "install", "--quiet", "--python", python]
        if one.pins:
            install += ["--requirements", PINS / f"{one.pins}.txt"]
            if one.overrides:
                install += ["--overrides", PINS / f"{one.overrides}-overrides.txt"]
        if one.oldest:
            install += ["--resolution", "lowest-direct"]
        elif not one.pins:
            install += ["--constraints", ROOT / "constraints.txt"]
        # Pins and our requirements are resolved as one: what does not fit is said, not forced.
        self.uv(*install, *requirements(*one.extras))
        install = ["pip", "install", "--quiet", "--python", python]
        self.uv(*install, "--no-deps", wheel)
        if one.tests:
            self.uv(*install, "--constraints", ROOT / "constraints.txt", *TEST_TOOLS)
        return python
