"""A check that a program is the one that wrote a checkpoint, and where the two differ."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

from rlgraph.errors import NO_SPAN, Diagnostic, Source, Span, UsageMistake
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.checkpoint.document import Checkpoint

CHANGED = "E0826"
_HINT = "with `--changed` the run goes on all the same, as far as what is kept still has a meaning"


def require_same_program(checkpoint: Checkpoint, compiled: Compilation) -> None:
    """Raise UsageMistake if the program's text, or what was set in it, has changed, and its graph with that."""
    if compiled.text() == checkpoint.graph:
        return
    settings = _settings(checkpoint.set, compiled.set)
    difference = _first(checkpoint.program, compiled.source.text, compiled.source.path)
    if settings:
        raise UsageMistake(Diagnostic(CHANGED, f"the run was begun {settings}", NO_SPAN, _HINT))
    if difference is not None:
        span, old_line = difference
        text = f"this was `{old_line}`" if old_line else "this was not there"
        raise UsageMistake(Diagnostic(CHANGED, f"the program has changed since the run was saved: {text}", span, _HINT))


def require_same_graph(checkpoint: Checkpoint, compiled: Compilation) -> None:
    """Raise UsageMistake if a program of the same text has become another graph."""
    difference = _first(checkpoint.graph, compiled.text(), "<graph>")
    if difference is not None:
        span, old_line = difference
        message = "what the program uses has changed, or rlgraph compiles it to another graph"
        raise UsageMistake(Diagnostic(CHANGED, f"{message}: this was `{old_line}`", span, _HINT))


def _settings(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the first `--set` that differs, as words for a message; empty if none does."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            return f"with `--set {name}={before[name]}`" if name in before else f"without `--set {name}=...`"
    return ""


def _first(before: str, now: str, path: str) -> tuple[Span, str] | None:
    """Return the first place in the present text where the two differ, and the line that was there before; None if
    they are the same. Comments and blank lines are ignored."""
    old, new = before.splitlines(), now.splitlines()
    blocks = SequenceMatcher(None, [_code(line) for line in old], [_code(line) for line in new], autojunk=False)
    for kind, a, a_end, b, b_end in blocks.get_opcodes():
        lines = [line for line in (*old[a:a_end], *new[b:b_end]) if _code(line)]
        if kind == "equal" or not lines:
            continue
        index = min(b, len(new) - 1) if new else 0
        line, was = new[index] if new else "", old[a].strip() if a < a_end else ""
        first = next((i for i, (x, y) in enumerate(zip(line, old[a], strict=False)) if x != y), 0) if was else 0
        first = max(first, len(line) - len(line.lstrip()))
        end = max(first + 1, len(line.rstrip()))
        return Span(Source(path, now), index + 1, first + 1, index + 1, end + 1), was
    return None


def _code(line: str) -> str:
    return line.partition("#")[0].strip()
