"""Values on one line of YAML, as the commands write and quote them.

Not here: whole specs (``cli.spec_text``).
"""

from __future__ import annotations

import io
import sys
from typing import Any


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    from ruamel.yaml import YAML

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = True, sys.maxsize
    yaml.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue().removesuffix("...\n").strip()
