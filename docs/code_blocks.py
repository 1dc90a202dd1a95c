"""Code on the pages: Python that compiles, and commands whose options there are.

Not here: running it (``tools/run_blocks.py``, and ``tests/written_pages.py`` where tests follow a
page); whole specs (``check``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer.main

from autoloader.cli.app import app

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^(?:\$ )?autoloader(?:\.(?=tune)| )(.*)", re.MULTILINE)
_ENDS = {"|", ">", ">>", "<", ";", "&", "&&", "||"}


def faults_of_code(text: str) -> Iterator[str]:
    """What is wrong with the blocks of a page, one line each."""
    for kind, body in _FENCE.findall(text):
        if kind == "python":
            try:
                compile(body, "the block", "exec")
            except SyntaxError as error:
                yield f"a block is no Python: {error.msg}: {(error.text or '').strip()}"
        elif kind in ("sh", "console"):
            for words in _LINE.findall(body.replace("\\\n", " ")):
                yield from _unknown_options(words)


def _unknown_options(line: str) -> Iterator[str]:
    """Options that the command of a line does not have."""
    command: Any = typer.main.get_command(app)
    name = "autoloader"
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in lexer:
        if word in _ENDS:
            return
        if word.startswith("-") and word != "-":
            option = word.partition("=")[0]
            context = command.make_context(name, [], resilient_parsing=True)
            known = {"--spec"}.union(*(one.opts for one in command.get_params(context)))
            known |= set(context.help_option_names)
            if option not in known and not option.lstrip("-").isdigit():
                yield f"`{name}` has no option {option}"
        elif word in getattr(command, "commands", ()):
            command, name = command.commands[word], f"{name} {word}"
