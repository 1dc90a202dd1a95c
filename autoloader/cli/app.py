"""The ``autoloader`` command: which subcommands there are, and how it ends.

Exit codes: 0 ok, 2 bad spec, profile or arguments, 3 the RAM floor cannot be met, 4 a data source
failed, 70 internal error, 130 interrupted. An ``AutoloaderError`` is shown as what happened and
what to do, never as a traceback; with ``--json`` it is the one JSON document on stdout as well.

Not here: the commands; each module of this package has its own.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import autoloader
from autoloader.catalog.tensorflow_process import extend_import_path
from autoloader.cli.demo import demo
from autoloader.cli.index import index
from autoloader.cli.init import init
from autoloader.cli.measure import measure
from autoloader.cli.output import emit, emit_json, note
from autoloader.cli.peek import peek
from autoloader.cli.plan import plan
from autoloader.cli.profile import profile_app
from autoloader.cli.replay import replay
from autoloader.cli.stats import stats
from autoloader.cli.tune import tune
from autoloader.cli.verify import verify
from autoloader.errors import AutoloaderError

INTERNAL_ERROR = 70
INTERRUPTED = 130

app = typer.Typer(
    name="autoloader",
    help="Name your datasets and a RAM floor; get the fastest stream this machine can give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class SchemaKind(str, Enum):
    """Files that have a JSON schema."""

    spec = "spec"
    profile = "profile"


class _StderrHandler(logging.Handler):
    """Writes this library's log lines to whatever stderr is at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


def _show_version(asked: bool) -> None:
    if asked:
        emit(f"autoloader {autoloader.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.")
    ] = 0,
    version: Annotated[  # its callback does the work
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Adaptive, memory-aware data loading for mixtures of robot datasets."""
    del version
    log = logging.getLogger("autoloader")
    log.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())


def schema(
    kind: Annotated[SchemaKind, typer.Argument(help="Which file.")] = SchemaKind.spec,
) -> None:
    """Print the JSON schema of a file, for editors and checks."""
    emit_json(_schema_of(kind))


def _schema_of(kind: SchemaKind) -> dict[str, Any]:
    if kind is SchemaKind.profile:
        from autoloader.profile import Profile

        return Profile.model_json_schema()
    from autoloader.spec import PipelineSpec

    return PipelineSpec.model_json_schema()


# In the order in which a new user meets them.
app.command("demo")(demo)
app.command("init")(init)
app.command("plan")(plan)
app.command("peek")(peek)
app.command("verify")(verify)
app.command("index")(index)
app.command("stats")(stats)
app.command("measure")(measure)
app.command("tune")(tune)
app.add_typer(profile_app, name="profile")
app.command("replay")(replay)
app.command("schema")(schema)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code.

    Args:
        arguments: words after the program's name; default those of this process.
    """
    return run_command(app, sys.argv[1:] if arguments is None else arguments, "autoloader")


def run_command(program: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Run one command line of ``program`` and give its exit code, as this module's says.

    Args:
        program: its commands.
        arguments: words after the program's name.
        name: the program's name in its help.
    """
    words = list(arguments)
    with contextlib.suppress(OSError):  # as `python -m` does: transforms may lie there
        extend_import_path([str(Path.cwd())])
    try:
        typer.main.get_command(program)(args=words, prog_name=name)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except AutoloaderError as error:
        return _told(error, as_json="--json" in words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001  (the last place before the shell: say it, with a fixed code)
        traceback.print_exc(file=sys.stderr)
        return INTERNAL_ERROR
    return 0


def _told(error: AutoloaderError, *, as_json: bool) -> int:
    note(f"error: {error}")
    if as_json:
        emit_json(
            {
                "error": {
                    "kind": type(error).__name__,
                    "what": error.what,
                    "remedy": error.remedy,
                    "exit_code": error.exit_code,
                }
            }
        )
    return error.exit_code
