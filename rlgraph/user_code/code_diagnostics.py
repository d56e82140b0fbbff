"""Makes the diagnostics for a user file that cannot be loaded, or a call into it that fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Related, RunError, Source, Span, did_you_mean, quoted_list
from rlgraph.user_code.files import NO_FILE, SearchFolders, find_file, find_module_file, is_module, module_search_path
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec
from rlgraph.user_code.worker import IMPORT_LIMIT_S, CodeFailure, CodeSource, Died, Raised, TimedOut, Worker, WrongValue

NO_NAME = "E0722"
NO_IMPORT = "E0723"
BAD_SIGNATURE = "E0724"
WRONG_VALUE = "E0725"
RAISED = "E0726"
TIMED_OUT = "E0727"
DIED = "E0728"
GONE = "E0740"
FROM_A_CELL = "; a cell of a notebook becomes that file by `%%writefile rewards.py` in its first line"


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """One object in a file or a module of the user's: `rewards.py:exact_match`."""

    path: str
    """The file or the module, as the program names it."""
    code: CodeSource
    name: str
    span: Span
    ours: bool = False
    """Whether the file is part of rlgraph, so that its lines mean nothing to the user."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The arguments with which a user's function or class may be called."""

    is_class: bool
    methods: frozenset[str]
    named: tuple[str, ...]
    """Parameters that can be given by name."""
    required: tuple[str, ...]
    open_ended: bool
    """Whether it takes `**kwargs`."""


def parse_target(reference: str, folders: SearchFolders, span: Span, kind: str) -> CodeTarget:
    """Return the file and the name in `"rewards.py:exact_match"`, or the module and the name in
    `"rlgraph.rewards:exact_match"`. Raises ProgramError if it does not exist."""
    path, colon, name = reference.rpartition(":")
    if not colon or not path or not name.isidentifier():
        message = f"`{kind}` takes a file or a module and a name in it, with a colon between, not '{reference}'"
        hint = f'as in `{kind}("rewards.py:exact_match")`{FROM_A_CELL}'
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, span, hint))
    if not is_module(path):
        return CodeTarget(path, CodeSource(find_file(path, folders, span, "Python file")), name, span)
    file = None if path == "__main__" else find_module_file(path, folders)
    if file is None:
        hint = f'install it where rlgraph runs; a file is named with its ending: `{kind}("{path}.py:{name}")`'
        if path == "__main__":
            hint = f'it runs in a process of its own: write it into a file, `{kind}("rewards.py:{name}")`{FROM_A_CELL}'
        raise ProgramError(Diagnostic(NO_FILE, f"there is no module '{path}'", span, hint))
    return CodeTarget(path, CodeSource(file, path, tuple(module_search_path(folders))), name, span)


def load_signature(target: CodeTarget, worker: Worker) -> CallSignature:
    """Load the user's file and return the signature of what it has under the name."""
    try:
        description = worker.request("describe", target.name, limit_s=IMPORT_LIMIT_S)
    except CodeFailure as failure:
        raise ProgramError(_not_loaded(target, failure)) from None
    if description["is"] not in ("function", "class"):
        raise ProgramError(missing_name_error(target, description["is"], description["names"]))
    parameters = description["parameters"]
    for name, kind, has_default in parameters:
        if kind == "POSITIONAL_ONLY" and not has_default:
            message = f"`{target.name}` takes '{name}' by position only, but arguments are given by name"
            hint = f"remove the `/` after '{name}' in its definition"
            raise ProgramError(Diagnostic(BAD_SIGNATURE, message, target.span, hint))
    by_name = [p for p in parameters if p[1] in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")]
    return CallSignature(
        description["is"] == "class",
        frozenset(description["methods"]),
        tuple(p[0] for p in by_name),
        tuple(p[0] for p in by_name if not p[2]),
        any(p[1] == "VAR_KEYWORD" for p in parameters),
    )


def user_options(spec: CallSpec, known: tuple[str, ...], signature: CallSignature, name: str) -> dict[str, Any]:
    """Return the options of `spec` that are not rlgraph's but arguments for the user's function or class `name`.

    They must be parameters that it names: `**kwargs` would swallow a misspelt `timeout`. Raises ProgramError.
    """
    for wrong in unknown_option_errors(spec, known, signature.named, name):
        raise ProgramError(wrong)
    return {option: value for option, value in spec.options.items() if option not in known}


def unknown_option_errors(
    spec: CallSpec, known: Collection[str], named: Collection[str], name: str
) -> list[Diagnostic]:
    """Return errors for options that are neither rlgraph's nor parameters of the user's function or class `name`."""
    errors = []
    for option in spec.options:
        if option not in known and option not in named:
            message = f"'{option}' is neither an option of `{spec.kind}` nor a parameter of `{name}`"
            hint = did_you_mean(option, (*known, *named)) or f"the options are: {', '.join(known)}"
            errors.append(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(option), hint))
    return errors


def require_arguments(
    target: CodeTarget,
    signature: CallSignature,
    options: Collection[str],
    kind: str = "python",
    given: Collection[str] = (),
) -> None:
    """Raise an error unless the options, and what is given beside them, are all that the user's function or class needs
    to be called."""
    for wrong in missing_argument_errors(target, signature.required, options, kind, given):
        raise ProgramError(wrong)


def missing_argument_errors(
    target: CodeTarget, required: Collection[str], options: Collection[str], kind: str, given: Collection[str]
) -> list[Diagnostic]:
    """Return an error if a parameter without a default is not given. kind: the word of the declaration. given: what
    rlgraph gives by itself."""
    missing = [name for name in required if name not in (*options, *given)][:1]
    hint = f'give it as an option: {kind}("{{}}:{{}}", {{}}=...)'
    hint += f"; without options it is given {quoted_list([*given], 'and')}" if given else ""
    return [
        Diagnostic(
            BAD_SIGNATURE,
            f"`{target.name}` cannot be called without '{name}'",
            target.span,
            hint.format(target.path, target.name, name),
        )
        for name in missing
    ]


def failed_call_error(
    target: CodeTarget, failure: CodeFailure, where: str, row: Mapping[str, Any] | None, hint: str = ""
) -> RunError:
    """Return the error for a call that failed.

    `where` says at what: `on row 3 of epoch 0`; `row` is shown if there is one.
    """
    match failure:
        case Raised():
            details = f": {shorten(failure.message, 300)}" if failure.message else ""
            code, message = RAISED, f"`{target.name}` raised {failure.type}{details}, {where}"
            if failure.type == "ModuleNotFoundError":
                hint = hint or "install it where rlgraph runs"
        case WrongValue():
            code, message = WRONG_VALUE, f"`{target.name}` gave {failure.what}, {where}"
        case TimedOut():
            late = f"did not come back within {failure.limit_s:g} s"
            code, message = TIMED_OUT, f"`{target.name}` {late}, {where}"
            hint = hint or "if it only needs longer, give it a longer `timeout=`, in seconds"
        case Died():
            code = GONE if failure.killed else DIED
            message = f"the process of `{target.name}` ended {failure.how}, {where}"
            if failure.killed:
                hint = hint or "somebody else ended it, most often the system, when memory runs out"
        case _:
            raise AssertionError(failure)
    shown = row_summary(row) if row else ""
    hint = f"{hint}; {shown}" if hint and shown else hint or shown
    return RunError(Diagnostic(code, message, target.span, hint, related=_place(target, failure)))


def row_summary(row: Mapping[str, Any]) -> str:
    """Return a row in a few words."""
    shown = [f"{name} = {shorten(_text(value), 60)!r}" for name, value in row.items()]
    return "there: " + ", ".join(shown[:4])


def shorten(text: str, most: int) -> str:
    """Return `text` as one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _text(value: Any) -> str:
    """Return a text as it is, and for a list of messages the last one's content."""
    if isinstance(value, list) and value and isinstance(value[-1], dict) and "content" in value[-1]:
        return str(value[-1]["content"])
    return value if isinstance(value, str) else str(value)


def missing_name_error(target: CodeTarget, found: str, names: list[str]) -> Diagnostic:
    """Return the error for a name under which a module has nothing (`missing`), or something that cannot be called."""
    if found != "missing":
        message = f"'{target.name}' in '{target.path}' is {found}, which cannot be called"
        return Diagnostic(NO_NAME, message, target.span)
    hint = did_you_mean(target.name, names)
    if not hint:
        some = ", ".join(sorted(names)[:8])
        hint = f"it has: {some}" if some else "the file defines no function and no class"
    return Diagnostic(NO_NAME, f"there is no '{target.name}' in '{target.path}'", target.span, hint)


def _not_loaded(target: CodeTarget, failure: CodeFailure) -> Diagnostic:
    match failure:
        case Raised(type="SyntaxError" | "IndentationError" | "TabError"):
            why, hint = f"it is not valid Python: {failure.message}", ""
        case Raised(type="ModuleNotFoundError"):
            why, hint = failure.message, "install it where rlgraph runs, or put it beside the file"
        case Raised():
            why, hint = f"{failure.type}: {shorten(failure.message, 300)}", ""
        case TimedOut():
            why, hint = f"not done within {failure.limit_s:g} s", ""
        case Died():
            why, hint = f"its process ended {failure.how}", ""
        case _:
            raise AssertionError(failure)
    message = f"'{target.path}' cannot be loaded: {why}"
    return Diagnostic(NO_IMPORT, message, target.span, hint, related=_place(target, failure))


def _place(target: CodeTarget, failure: CodeFailure) -> tuple[Related, ...]:
    """Return the line of the user's Python that was running, to be shown with the error."""
    if not failure.line or target.ours:
        return ()
    file = Path(failure.file)
    main = target.code.file.resolve()
    path = target.path if file == main and not target.code.module else _relative(file, main.parent)
    try:
        source = Source(path, file.read_text(errors="replace"))
    except OSError:
        source = Source(path, "")
    line = source.line_text(failure.line)
    start = len(line) - len(line.lstrip()) + 1
    span = Span(source, failure.line, start, failure.line, max(len(line.rstrip()), start) + 1)
    return (Related(span, "it was here"),)


def _relative(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
