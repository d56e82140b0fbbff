"""Short forms of settings: `--data mine.jsonl` and `--reward rewards.py:score` in the place of whole right sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlgraph.data.base import SHARED_OPTIONS
from rlgraph.dsl import tree
from rlgraph.dsl.check import new_context
from rlgraph.dsl.parse import parse
from rlgraph.dsl.use import resolve_uses
from rlgraph.errors import Diagnostic, ProgramError, Source, Span, UsageMistake, quoted_list
from rlgraph.passes.compilation.read_program import open_program_file
from rlgraph.user_code.function_declarations import OPTIONS as FUNCTION_OPTIONS

UNFITTING = "E0791"
_BY_ENDING = ("jsonl", "parquet")
"""Sources of one file, which are called as its ending."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ShortForm:
    """An option that stands for a setting."""

    option: str
    kind: str
    """The word of the declarations that it replaces."""
    kept: Collection[str]
    """The options of a declaration that are kept."""
    example: str
    source_of: Callable[[str], str]
    """Returns the word that is called for a value, empty for what it cannot be."""


def _data_source(value: str) -> str:
    path, ending = Path(value), Path(value.partition(":")[0]).suffix[1:]
    if ending == "py" and ":" in value:
        return "python"
    if ending in _BY_ENDING and "*" not in value:
        return ending
    if _HUB_NAME.fullmatch(value) and not path.exists() and not path.suffix:
        return "hub"
    return "files"


def _function_source(value: str) -> str:
    return "python" if ":" in value else ""


DATA = ShortForm("--data", "data", SHARED_OPTIONS, "mine.jsonl", _data_source)
REWARD = ShortForm("--reward", "func", FUNCTION_OPTIONS, "rewards.py:score", _function_source)


def with_short_forms(
    settings: Mapping[str, str], program: str, given: Mapping[ShortForm, Sequence[str]]
) -> dict[str, str]:
    """Return the settings with those that short forms stand for. program: the name of its file. Raises UsageMistake for
    a short form that stands for none or for several; a program that is wrong is left for the checker to report."""
    result = dict(settings)
    if not any(given.values()):
        return result
    try:
        source = open_program_file(program).source
        declarations = resolve_uses(parse(source), source, new_context()).declarations
    except ProgramError:
        return result
    for form, values in given.items():
        declared = {
            item.name: item.value
            for item in declarations
            if isinstance(item, tree.Declaration) and item.kind == form.kind
        }
        for value in values:
            name, expression = _setting(form, value, declared)
            if name in result:
                raise _mistake(form, value, f"`{name}` is set twice", f"by `--set` or by `{form.option}`, not by both")
            result[name] = expression
    return result


def _setting(form: ShortForm, text: str, declared: Mapping[str, tree.Expr]) -> tuple[str, str]:
    """Return the name of the declaration that a short form replaces, and its new right side."""
    name, sign, value = text.partition("=")
    if not sign or name.strip() not in declared:
        name, value = "", text
    if not declared:
        raise _mistake(form, text, f"the program declares no `{form.kind}`", _instead(form))
    if not name and len(declared) > 1:
        message = f"the program declares several `{form.kind}`: {quoted_list([*declared], 'and')}"
        raise _mistake(form, text, message, f"say which: `{form.option} {next(iter(declared))}={value}`")
    name = name.strip() or next(iter(declared))
    path, comma, options = (part.strip() for part in value.partition(","))
    word = form.source_of(path)
    if not path or not word:
        raise _mistake(form, text, f"`{path}` is no {_what(form)}", _as_in(form, path))
    escaped = "".join("\\" + character if character in '\\"' else character for character in path)
    parts = [f'"{escaped}"', *([options] if comma and options else [])]
    said = {option.partition("=")[0].strip() for option in options.split(",")}
    old = declared[name]
    if isinstance(old, tree.Call):
        parts += [
            option.span.covered_text for option in old.options if option.name in form.kept and option.name not in said
        ]
    return name, f"{word}({', '.join(parts)})"


def _as_in(form: ShortForm, path: str) -> str:
    """Return the hint for what is no source of a form. path: what was given."""
    if form is REWARD and (Path(path).is_dir() or _HUB_NAME.fullmatch(path)):
        declared = f'`model taste = frozen(reward_lm("{path}"))`'
        return f"a reward model is declared in the program, {declared}, and asked there: `score = taste.score(rollout)`"
    return f"as in `{form.option} {form.example}`"


def _what(form: ShortForm) -> str:
    if form is REWARD:
        return "function of a file or a module"
    ways = [f"a .{ending} file" for ending in _BY_ENDING]
    return f"source of data: give {', '.join(ways)}, a name of the hub, or FILE.py:FUNCTION"


def _instead(form: ShortForm) -> str:
    return (
        "its reward is a model's, or there is none: `--set` replaces a `model`" if form is REWARD else "it reads none"
    )


def _mistake(form: ShortForm, text: str, message: str, hint: str) -> UsageMistake:
    source = Source(form.option, text)
    return UsageMistake(Diagnostic(UNFITTING, message, Span(source, 1, 1, 1, len(text) + 1), hint))
