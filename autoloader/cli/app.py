"""The ``autoloader`` command: which subcommands there are, and how it ends.

Exit codes: 0 ok, 1 ``doctor`` found something, 2 bad spec, profile or arguments, 3 the RAM floor
cannot be met, 4 a data source failed, 70 internal error, 130 interrupted. An ``AutoloaderError`` is
shown as what happened and what to do, never as a traceback. With ``--json`` every error is the one
JSON document on stdout as well, wrong arguments included.

A command's module is imported when the command runs, so that ``autoloader --help`` is quick; the
table ``COMMANDS`` says what each does.

Not here: the commands; each has a module of its name in this package.
"""

from __future__ import annotations

import importlib
import logging
import re
import resource
import sys
import traceback
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import autoloader
from autoloader.cli.options import JsonFlag
from autoloader.cli.output import (
    discard_unwritable,
    emit,
    emit_json,
    flush_stdout,
    note,
    open_streams,
)
from autoloader.errors import AutoloaderError, BudgetInfeasibleError, UsageError, nearest
from autoloader.host.units import format_bytes

INTERNAL_ERROR = 70
INTERRUPTED = 130
INTERNAL_REMEDY = "this is a fault of autoloader; please report it with this message"
# Of whichever command line library typer stands on: that has no name of its own in typer.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

COMMANDS = {
    "demo": "Write the demo mixture (real TFDS/RLDS files) and its mix.yaml, unless it is there.",
    "inspect": "Show a dataset's splits, features, first episode and ranges.",
    "init": "Write a spec of the TFDS datasets below DATA_DIR to stdout.",
    "plan": "Say whether a mixture fits, how fast it can be and what limits it; starts nothing.",
    "peek": "Draw frames and language, histograms of each column op by op, and the steps rules "
    "remove.",
    "verify": "Compare samples with plain readers of the same files; exit code 4 if they differ.",
    "index": "Index where every frame lies, so that samples are read at random; builds what is "
    "missing.",
    "stats": "Compute each dataset's statistics of action and state, from its records of train.",
    "measure": "Measure the loader alone: rate, latency, memory and mixture; the knobs hold still.",
    "tune": "Find the knobs that suit this machine, under a RAM floor, and save them as a profile.",
    "top": "Show what your running loaders do, why, and what limits them, without disturbing them.",
    "report": "Draw one HTML page of a run: what limited it, what was done and why; or two side "
    "by side.",
    "doctor": "Say what on this machine will hurt a run; changes nothing. Exit code 1: something "
    "will.",
    "replay": "Derive every decision of the logs again, and say where the answers differ.",
    "schema": "Print the JSON schema of a file, for editors and checks, with --json or without.",
    "profile": "Host profiles: a machine, its limits, and the knobs that suit it.",
}
"""Command → its line on the first screen, in the order in which a new user meets them."""


def command_of(name: str) -> Any:
    """Import a command and give it as the command line's library has it."""
    made = schema if name == "schema" else None
    made = made or getattr(importlib.import_module(f"autoloader.cli.{name}"), name)
    if not isinstance(made, typer.Typer):
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        alone.command(name)(made)
        made = alone
    return typer.main.get_command(made)


class _Commands(TyperGroup):
    """Imports the command that is asked for; the help of all needs none of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and command_of(name), rest


app = typer.Typer(
    name="autoloader",
    cls=_Commands,
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
    as_json: JsonFlag = False,
) -> None:
    """Print the JSON schema of a file, for editors and checks, with --json or without."""
    del as_json
    emit_json(_schema_of(kind))


def _schema_of(kind: SchemaKind) -> dict[str, Any]:
    if kind is SchemaKind.profile:
        from autoloader.controller.profile import Profile

        return Profile.model_json_schema()
    from autoloader.spec import PipelineSpec

    return PipelineSpec.model_json_schema()


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code.

    Args:
        arguments: words after the program's name; default those of this process.
    """
    return run_command(app, sys.argv[1:] if arguments is None else arguments, "autoloader")


def run_command(program: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Run one command line of ``program`` and give its exit code, as this module's says.

    Args:
        program: typer application with the commands.
        arguments: words after the program's name.
        name: the program's name in its help.
    """
    words = list(arguments)
    open_streams()
    as_json = "--json" in words
    try:
        code = _run(program, words, name, as_json=as_json)
    except AutoloaderError as error:  # the error's own document has nowhere to go either
        code = _told(error, error, as_json=False)
    discard_unwritable()
    return code


def _run(program: typer.Typer, words: list[str], name: str, *, as_json: bool) -> int:
    """Run it, all of its result written.

    Raises:
        UsageError: stdout cannot be written to.
    """
    try:
        code = typer.main.get_command(program)(args=words, prog_name=name, standalone_mode=False)
        flush_stdout()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the last place before the shell: say it, with a fixed code)
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is shown already
            return UsageError.exit_code
        return _told(error, _as_ours(error, name, words), as_json=as_json)
    return code if isinstance(code, int) else 0


def _as_ours(error: Exception, program: str, words: Sequence[str]) -> AutoloaderError | None:
    """The error as one of this library; ``None`` where it is an internal one."""
    if isinstance(error, AutoloaderError):
        return error
    if isinstance(error, _CommandLineError):
        return as_usage_error(error, program, words)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = limit != resource.RLIM_INFINITY
    # A limited address space may have no room for a library.
    if isinstance(error, MemoryError) or (limited and isinstance(error, ImportError)):
        told = f"; ulimit -v is {format_bytes(limit)}" if limited else ""
        return BudgetInfeasibleError(
            f"this process got no more memory{told}{f': {error}' if str(error) else ''}",
            remedy="raise or lift the limit, or close what else uses memory",
        )
    return None


def _told(error: Exception, known: AutoloaderError | None, *, as_json: bool) -> int:
    """Show an error, and give the exit code."""
    if known is None:
        flush_stdout()  # where stdout is what failed, that is what to say
        note("".join(traceback.format_exception(error)))
        kind, what, remedy, code = type(error), str(error), INTERNAL_REMEDY, INTERNAL_ERROR
    else:
        note(f"error: {known}")
        kind, what, remedy, code = type(known), known.what, known.remedy, known.exit_code
    if as_json:
        shown = {"kind": kind.__name__, "what": what, "remedy": remedy, "exit_code": code}
        emit_json({"error": shown})
        flush_stdout()
    return code


_NO_COMMAND = re.compile(r"No such command '(.*)'")


def as_usage_error(error: Any, program: str, words: Sequence[str]) -> UsageError:
    """Translate an error of the command line's library into a ``UsageError``.

    Args:
        error: the library's error, of whichever class.
        program: the name of the program, where the error names no command.
        words: the arguments of the program.
    """
    context = getattr(error, "ctx", None)
    command = program if context is None else context.command_path
    remedy = f"`{command} --help` says what it takes"
    parameter = getattr(error, "param", None)
    said = error.format_message()
    if parameter is None:
        if (unknown := _NO_COMMAND.match(said)) and context is not None:
            remedy = f"{nearest(unknown[1], context.command.commands)}; {remedy}"
        return UsageError(said, remedy=remedy)
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    name = name or parameter.name.upper()
    if said.startswith("Missing"):
        return UsageError(f"{name} is required and missing", remedy=f"{parameter.help} {remedy}")
    allowed = error.message.removeprefix("Value error, ").partition(",")
    found = _value(parameter.opts, words)
    if found is None or repr(found) in error.message:
        return UsageError(f"{name}: {''.join(allowed)}", remedy=remedy)
    should = allowed[0].replace("Input should be", "it should be")
    return UsageError(f"{name}: {found!r} is not allowed", remedy=f"{should}; {remedy}")


def _value(options: Sequence[str], words: Sequence[str]) -> str | None:
    """Value that the words give the last of these options; ``None`` where they give none."""
    found = None
    for word, after in zip(words, [*words[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            found = value if equals else after
    return found
