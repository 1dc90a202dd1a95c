"""Writes the demo mixture's ``mix.yaml``.

Not here: which datasets there are (``demo.datasets``), their files (``demo.write``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from autoloader.demo.datasets import VERSION, DemoDataset


def _flow(value: object) -> str:
    """A value on one line of YAML: plain words bare, the rest as in JSON."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[a-z][\w/]*", value) else json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


def spec_text(chosen: Sequence[DemoDataset], scale: float, seed: int) -> str:
    """``mix.yaml`` of these datasets."""
    lines = [
        "# The demo mixture. Paths start at this file's folder.",
        "schema_version: 1",
        f"seed: {seed}",
        'defaults: {split: {train: "train", val: "val"}}',
        "datasets:",
    ]
    for one in chosen:
        lines.append(f"  - name: {one.name}")
        lines.append(f"    path: {one.name}/{VERSION}")
        lines.append(f"    weight: {one.weight}")
        if not one.has_val:
            few = one.train_episodes(scale) < 40
            parts = ("train[:-1]", "train[-1:]") if few else ("train[:95%]", "train[95%:]")
            lines.append(f'    split: {{train: "{parts[0]}", val: "{parts[1]}"}}')
        if one.second:
            lines.append(f"    # a second camera: {one.second[0]}")
        lines.append(f"    images: {{primary: {one.primary}}}")
        action = one.action_fields or one.action_paths
        lines.append(f"    action: {_flow(action[0] if len(action) == 1 else list(action))}")
        if one.state:
            state = list(one.state)
            lines.append(f"    state: {_flow(state[0] if len(state) == 1 else state)}")
        if one.language:
            words = one.language
            lines.append(
                f"    language: {_flow(words[0] if len(words) == 1 else {'any_of': list(words)})}"
            )
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        "cameras: {primary: {size: [256, 256]}}",
        "batch: {size: 48}",
    ]
    return "\n".join(lines) + "\n"
