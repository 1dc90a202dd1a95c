"""The ``autoloader`` command: which subcommands there are, and how it ends.

Exit codes: 0 ok; 1 ``doctor`` found something; 2 bad spec, profile or arguments; 3 the RAM floor
cannot be met; 4 a data source failed; 70 internal error; 130 interrupted. An ``AutoloaderError`` is
shown as what happened and what to do, never as a traceback. With ``--json`` every error is the one
JSON document on stdout as well, wrong arguments included.

Not here: the commands (``commands``).
"""

from __future__ import annotations

import re
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from autoloader.cli.commands import app
from autoloader.cli.output import (
    answered,
    discard_unwritable,
    flush_stdout,
    note,
    open_streams,
    use_json,
)
from autoloader.errors import AutoloaderError, BudgetInfeasibleError, UsageError, nearest
from autoloader.host.units import format_bytes

INTERNAL_ERROR = 70
INTERRUPTED = 130
INTERNAL_REMEDY = "this is a fault of autoloader; please report it with this message"
# Base of the errors of typer's command line library; typer gives it no name.
_CommandLineError: Any = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code.

    Args:
        arguments: words after the program's name; ``None``: this process's words.
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
    use_json("--json" in words)
    try:
        code = _run(program, words, name)
    except AutoloaderError as error:  # the error's own document has nowhere to go either
        use_json(False)
        code = _told(error, error)
    discard_unwritable()
    return code


def _run(program: typer.Typer, words: list[str], name: str) -> int:
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
        return _told(error, _as_ours(error, name, words))
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


def _told(error: Exception, known: AutoloaderError | None) -> int:
    """Show an error, and give the exit code."""
    if known is None:
        flush_stdout()  # where stdout is what failed, that is what to say
        note("".join(traceback.format_exception(error)))
        kind, what, remedy, code = type(error), str(error), INTERNAL_REMEDY, INTERNAL_ERROR
    else:
        note(f"error: {known}")
        kind, what, remedy, code = type(known), known.what, known.remedy, known.exit_code
    shown = {"kind": kind.__name__, "what": what, "remedy": remedy, "exit_code": code}
    if answered({"error": shown}):
        flush_stdout()
    return code


_NO_COMMAND = re.compile(r"No such command '(.*)'")


def as_usage_error(error: Any, program: str, words: Sequence[str]) -> UsageError:
    """Translate an error of the command line's library into a ``UsageError``.

    Args:
        error: error of the library, of any class.
        program: name of the program, for errors that name no command.
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
