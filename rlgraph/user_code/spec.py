"""Holds what a declaration says about data, a function or an environment, and the checks that all of them share.

`jsonl("gsm8k.jsonl", batch=512)` is `Spec("jsonl", ("gsm8k.jsonl",), {"batch": 512}, span)`. Nothing here looks at a
file.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Span, did_you_mean, install_command

BAD_ARGUMENT = "E0702"
UNREADABLE = "E0704"
NOT_INSTALLED = "E0709"


@dataclass(frozen=True, slots=True)
class CallSpec:
    """The call on the right of `data NAME =`, `func NAME =` or `env NAME =`."""

    kind: str
    """The word that is called: `jsonl`, `python`, `reasoning_gym`."""
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    """The options by name, as plain values: numbers, texts, booleans, lists of them."""
    span: Span
    """The place of the whole call."""
    spans: Mapping[int | str, Span] = field(default_factory=dict, compare=False, repr=False)
    """The places of single arguments, by position or name, where they are known: the caret is then more exact."""

    def argument_span(self, argument: int | str) -> Span:
        """Return where `argument` is written."""
        return self.spans.get(argument, self.span)


def single_text_argument(spec: CallSpec, what: str, example: str) -> str:
    """Return the only positional argument of `spec`, which must be a text."""
    if len(spec.args) == 1 and isinstance(spec.args[0], str) and spec.args[0]:
        return spec.args[0]
    message = f"`{spec.kind}` takes one text: {what}"
    raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, f"as in `{example}`"))


def refuse_unknown_options(spec: CallSpec, known: Collection[str]) -> None:
    """Raise an error for the first option that is not `known`."""
    for name in spec.options:
        if name not in known:
            message = f"`{spec.kind}` has no option '{name}'"
            hint = did_you_mean(name, known) or f"its options are: {', '.join(known)}"
            raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(name), hint))


def int_option(spec: CallSpec, name: str, default: int | None, least: int = 1) -> int | None:
    """Return the option `name`, a whole number of at least `least`."""
    if name not in spec.options:
        return default
    value = spec.options[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(spec, name, f"a whole number of at least {least}", value)
    return int(value)


def seconds_option(spec: CallSpec, name: str, default: float) -> float:
    """Return the option `name`, a time in seconds; 0 means without limit, and becomes infinity."""
    value = spec.options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        raise _wrong(spec, name, "a number of seconds up to a million, 0 for no limit", value)
    return float(value) or math.inf


def flag_option(spec: CallSpec, name: str, default: bool) -> bool:
    """Return the option `name`, `true` or `false`."""
    value = spec.options.get(name, default)
    if not isinstance(value, bool):
        raise _wrong(spec, name, "true or false", value)
    return value


def text_option(spec: CallSpec, name: str, default: str | None) -> str | None:
    """Return the option `name`, a text."""
    value = spec.options.get(name, default)
    if value is not default and not isinstance(value, str):
        raise _wrong(spec, name, "a text", value)
    return value


def _wrong(spec: CallSpec, name: str, wanted: str, value: object) -> ProgramError:
    return ProgramError(Diagnostic(BAD_ARGUMENT, f"`{name}` must be {wanted}, not {value!r}", spec.argument_span(name)))


EXTRAS = {
    "datasets": "datasets",
    "pyarrow": "datasets",
    "zstandard": "datasets",
    "reasoning_gym": "gym",
    "math_verify": "math",
    "textarena": "textarena",
    "gymnasium": "gymnasium",
    "openenv": "openenv",
}
"""The extra of rlgraph that installs a package."""


def require_package(module: str, span: Span) -> None:
    """Raise an error unless `module` is installed."""
    if importlib.util.find_spec(module) is None:
        message = f"this needs the package '{module}', which is not installed"
        raise ProgramError(Diagnostic(NOT_INSTALLED, message, span, install_command(EXTRAS[module])))
