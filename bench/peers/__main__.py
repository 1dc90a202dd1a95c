"""``python -m bench.peers [KIND SPEC]``: makes the peers' environment, or converts a mixture.

The environment holds the packages of the extra ``bench`` and nothing else; all other packages are
those of the Python that runs this.

Not here: what is converted (the peer's own module), who runs where (``bench.peers``).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from bench.peers import ENVIRONMENT, contender_class

ROOT = Path(__file__).parents[2]


def main() -> int:
    if len(sys.argv) == 3:
        found: Any = contender_class(sys.argv[1])
        found.prepare(Path(sys.argv[2]))
        return 0
    if sys.version_info < (3, 11):
        print("bench.peers: Grain and datasets need Python 3.11 or newer", file=sys.stderr)
        return 2
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = declared["optional-dependencies"]["bench"]
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(ENVIRONMENT)], check=True
        )
        (place,) = ENVIRONMENT.glob("lib/python*/site-packages")
        below = sysconfig.get_path("purelib")
        (place / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    limits = ["--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    return subprocess.run([*command, *limits, *packages], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
