"""Loaders under a low limit of open files: a script of its own, since a limit cannot be undone."""

import json
import resource
import sys
from pathlib import Path

from rlds_files import Written
from streams import spec_of

from autoloader import AutoLoader
from autoloader.errors import AutoloaderError


def most_descriptors(loaders: list[AutoLoader]) -> int:
    """Of the fullest process."""
    processes = {pid for loader in loaders for pid in loader.statistics().worker_pids}
    return max(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for pid in processes or {"self"})


def main() -> None:
    """Read a few batches from several loaders in turn, and say what came of it."""
    asked = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (asked["limit"], asked["limit"]))
    datasets = [Written(Path(one).parent.name, Path(one), []) for one in asked["datasets"]]
    loaders: list[AutoLoader] = []
    rows = 0
    try:
        for seed in range(asked["loaders"]):
            spec = spec_of(
                *datasets,
                reader=asked["reader"],
                seed=seed,
                batch={"size": 16},
                mixing={"epoch": "forever"},
            )
            loaders.append(
                AutoLoader(
                    spec,
                    output="numpy",
                    ram_floor="100MB",
                    isolation=asked["isolation"],
                    controller=False,
                    knobs=asked["knobs"] or None,
                )
            )
        streams = [iter(loader) for loader in loaders]
        for _ in range(asked["batches"]):
            rows += sum(len(next(stream)["action"]) for stream in streams)
        said = {"rows": rows, "descriptors": most_descriptors(loaders)}
    except AutoloaderError as error:
        said = {"error": type(error).__name__, "told": str(error)}
    finally:
        for loader in loaders:
            loader.close()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
