"""``python -m bench.peers KIND SPEC``: converts a mixture into the files that a peer reads.

Not here: what is converted (the peer's own module).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.peers import contender_class

if __name__ == "__main__":
    found: Any = contender_class(sys.argv[1])
    found.prepare(Path(sys.argv[2]))
