"""What an installation without any extra does and refuses; prints one JSON document.

    python core_script.py DATA_DIR FOLDER

It looks at one dataset by ``init``, ``plan`` and ``measure``, reads batches as NumPy arrays, and
asks for everything that an extra brings.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, AutoloaderError, PipelineSpec
from autoloader.cli.app import main


def command(words: Sequence[str]) -> dict[str, Any]:
    """A command's exit code, and what it wrote."""
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        code = main(words)
    return {"code": code, "out": out.getvalue(), "told": told.getvalue()}


def refusal(call: Callable[[], Any]) -> dict[str, str]:
    """The error that a call ends with."""
    try:
        call()
    except (AutoloaderError, ImportError) as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "none", "text": ""}


def import_lightning() -> None:
    import autoloader.lightning  # noqa: F401


def import_tfdata() -> None:
    import autoloader.tfdata  # noqa: F401


def run(data: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"init": command(["init", data])}
    spec_path = folder / "mix.yaml"
    spec_path.write_text(found["init"]["out"])
    spec = ["--spec", str(spec_path)]
    floor = [*spec, "--ram-floor", "100MB", "--json"]
    found["plan"] = command(["plan", *floor])
    found["measure"] = command(["measure", *floor, "--warmup", "1", "--batches", "2"])
    declared = PipelineSpec.from_yaml(spec_path)
    there = declared.datasets[0].model_copy(update={"path": "gs://a-bucket/robot/1.0.0"})
    far = declared.model_copy(update={"datasets": (there,)})
    held: dict[str, Any] = {"ram_floor": "100MB", "controller": False}
    with AutoLoader(declared, output="numpy", **held) as loader:
        batch = next(iter(loader))
        found["arrays"] = {
            name: [type(part).__module__, str(part.dtype), list(part.shape)]
            for name, part in {**batch, **batch["images"]}.items()
            if hasattr(part, "dtype")
        }
        found["refused"] = {
            "torch": refusal(lambda: AutoLoader(declared, **held)),
            "transfer": refusal(lambda: loader.transfer("cuda:0")),
            "stream": refusal(
                lambda: AutoLoader(declared, output="numpy", knobs={"reader": "stream"}, **held)
            ),
            "remote": refusal(lambda: AutoLoader(far, output="numpy", **held)),
            "lightning": refusal(import_lightning),
            "tfdata": refusal(import_tfdata),
        }
    for name, words in {
        "demo": ["demo", str(folder / "demo")],
        "tune": ["tune", *spec],
        "verify": ["verify", *spec],
        "peek": ["peek", *spec],
    }.items():
        found["refused"][name] = command(words)
    found["modules"] = sorted({name.partition(".")[0] for name in sys.modules if sys.modules[name]})
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
