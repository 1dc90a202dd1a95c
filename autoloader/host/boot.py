"""The first file that a process of the library runs: sets its import path, then runs a module.

``python -P boot.py MODULE ARGUMENTS...``. Python 3.10 knows no ``-P`` and puts this file's folder
in front of the import path. The first statements take it out again, and import only built-in
modules. The package itself comes from where this file lies, so that a process never runs another
version of it than the one that started it.

Not here: who starts it, and the import path (``host.supervision``).
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    import gc
    import json
    import os
    import runpy
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    # Importing makes many objects and leaves none behind: looking for garbage takes a tenth of it.
    gc.set_threshold(10_000)
    given = json.loads(os.environ.pop("AUTOLOADER_IMPORT_PATH", "[]"))
    sys.path[:] = [*given, *(entry for entry in sys.path if entry not in given)]
    init = Path(__file__).absolute().parents[1] / "__init__.py"
    found = spec_from_file_location(
        "autoloader", init, submodule_search_locations=[str(init.parent)]
    )
    assert found is not None
    assert found.loader is not None
    package = sys.modules["autoloader"] = module_from_spec(found)
    found.loader.exec_module(package)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
