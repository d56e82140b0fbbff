"""Notebooks: `%load_ext rlgraph` brings the cell magic `%%rlf`, and compiled programs draw themselves.

    %%rlf grpo --visualize --set n=4
    algorithm grpo
    ...

compiles the cell and binds it to the variable `grpo` (the algorithm's name, if none is given).
"""

from __future__ import annotations

import keyword
import shlex
from typing import Any

from rlgraph.api import compile
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, count_phrase

_FORM = "%%rlf [NAME] [--visualize] [--set NAME=EXPR]..."


def register_magic(shell: Any) -> None:
    """Register `%%rlf` in an IPython shell."""

    def rlf(line: str, cell: str) -> None:
        """Compiles the cell: %%rlf [NAME] [--visualize] [--set NAME=EXPR]..."""
        from IPython.display import display

        name, visualize, settings = _options(line)
        # Editors count the line of the magic, too.
        compiled = compile(f"\n{cell}", settings, name="<cell>")
        for warning in compiled.diagnostics:
            print(warning.render())
        name = name or compiled.name
        shell.push({name: compiled})
        if visualize:
            display(compiled)
        else:
            print(f"{name}: {count_phrase(len(compiled.program.models), 'model')}, ready to run")

    shell.register_magic_function(rlf, magic_kind="cell")


def _options(line: str) -> tuple[str, bool, dict[str, str]]:
    """Parse the line after `%%rlf`."""
    name, visualize = "", False
    settings: dict[str, str] = {}
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _misused(f"{error}".lower()) from None
    while words:
        word = words.pop(0)
        if word == "--visualize":
            visualize = True
        elif word == "--set" or word.startswith("--set="):
            text = word[6:] or (words.pop(0) if words else "")
            setting, sign, value = text.partition("=")
            if not sign or not setting.isidentifier():
                raise _misused(f"`{text}` is not NAME=EXPR")
            settings[setting] = value
        elif word.isidentifier() and not keyword.iskeyword(word) and not name:
            name = word
        else:
            raise _misused(f"`{word}` cannot stand here")
    return name, visualize, settings


def _misused(message: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0809", message, NO_SPAN, f"write `{_FORM}`"))
