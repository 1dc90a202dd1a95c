"""Wrong arguments, as errors that name the option, the value found and what is allowed.

The command line's library tells some of that, in a programmer's words; the rest is looked up in the
command and in its words.

Not here: what values mean (each command), how an error is shown (``app``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autoloader.errors import UsageError, nearest

_NO_COMMAND = re.compile(r"No such command '(.*)'")


def as_usage_error(error: Any, program: str, words: Sequence[str]) -> UsageError:
    """What the command line's library refused, as a ``UsageError``.

    Args:
        error: the library's own.
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
    """What the words give the last of these options; ``None`` where they give nothing."""
    found = None
    for word, after in zip(words, [*words[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            found = value if equals else after
    return found
