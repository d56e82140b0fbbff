"""What a `func` declaration may say, checked without any file."""

from __future__ import annotations

import math
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, did_you_mean
from rlgraph.user_code.outcomes import result_contract
from rlgraph.user_code.spec import (
    BAD_ARGUMENT,
    CallSpec,
    flag_option,
    int_option,
    refuse_unknown_options,
    seconds_option,
    single_text_argument,
    text_option,
)

FunctionSpec = CallSpec
DEFAULT_LIMIT_S = 300.0
OPTIONS = ("timeout", "batch", "workers", "over", "none", "failed", "returns", "texts", "trial")
UNITS = ("row", "group", "batch")
SHIPPED = {
    "reasoning_gym": ("reasoning_gym_rewards.py", "reasoning_gym"),
    "math_verify": ("latex.py", "math_verify"),
    "http": ("reward_server.py", ""),
}
"""For each form that is a function of rlgraph its file, and the package that it needs."""
_FORMS = ("python", *SHIPPED)
_SERVER_OPTIONS = ("retries", "token")
RETRIES = 3
"""How often a server is asked again, where the declaration does not say."""
_OPENAI = ("/completions", "/responses", "/v1")
"""How addresses of OpenAI's API end."""


def check_function_declaration(spec: FunctionSpec) -> None:
    """Raise an error for what is wrong with a `func` declaration, as far as can be seen without any file."""
    if spec.kind not in _FORMS:
        hint = did_you_mean(spec.kind, _FORMS) or f"there are: {', '.join(_FORMS)}"
        message = f"there are no functions of kind '{spec.kind}'"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, hint))
    if spec.kind == "python":
        single_text_argument(spec, "a file and a function in it", 'python("rewards.py:exact_match")')
    elif spec.kind == "http":
        _check_server(spec)
    elif spec.args:
        single_text_argument(spec, "the task, where the rows do not name it", 'reasoning_gym("spell_backward")')
    if spec.kind != "python":
        refuse_unknown_options(spec, (*OPTIONS, *(_SERVER_OPTIONS if spec.kind == "http" else ())))
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    int_option(spec, "batch", None)
    int_option(spec, "workers", 1)
    flag_option(spec, "trial", True)
    over_option(spec)
    result_contract(spec)


def _check_server(spec: FunctionSpec) -> None:
    """Raise an error for what is wrong with the address of a server, or how it is asked."""
    url = single_text_argument(spec, "the address of a server", 'http("http://judge:8000/score")')
    if not url.startswith(("http://", "https://")):
        message = f"'{url}' is no address of a server: it begins with http:// or https://"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span(0), 'as in `http("http://judge:8000/score")`')
        )
    if url.rstrip("/").endswith(_OPENAI):
        message = f"'{url}' is where OpenAI's API answers with texts, and `http` asks for a score"
        hint = 'ask it from a function of yours, `python("judge.py:judge")`, with the client `openai`'
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(0), hint))
    int_option(spec, "retries", RETRIES, 0)
    text_option(spec, "token", None)


def reward_server_settings(spec: FunctionSpec, limit_s: float) -> dict[str, Any]:
    """Return how the server of a declaration is asked, for `reward_server.http`."""
    limit = None if math.isinf(limit_s) else limit_s
    retries, token = int_option(spec, "retries", RETRIES, 0), text_option(spec, "token", None)
    return {"url": spec.args[0], "retries": retries, "limit_s": limit, "token": token}


def over_option(spec: FunctionSpec) -> str:
    """Return the option `over`. Raises ProgramError, also for options that would cut what it keeps together."""
    over: str = text_option(spec, "over", "group" if spec.kind == "python" else "row") or ""
    if over not in UNITS:
        message = f"`over` must be row, group or batch, not {over!r}"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span("over"), did_you_mean(over, UNITS)))
    cutting = "batch" if spec.options.get("batch") else "workers" if spec.options.get("workers", 1) > 1 else ""
    if over == "batch" and cutting:
        message = f"`over=batch` has one call for all rows, and `{cutting}` would cut them"
        hint = f"leave `{cutting}` out, or write `over=group` if a row's number depends on those of its prompt alone"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(cutting), hint))
    return over
