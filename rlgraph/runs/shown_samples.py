"""Shows samples on a terminal: no wider than it is, without what it would obey, long texts cut."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, set_cell_size

from rlgraph.backends.rows import RowId
from rlgraph.backends.samples import Sample
from rlgraph.conversations import OddRow, parse_content
from rlgraph.errors import escape_controls

_LINES = 8
"""The most lines in which a text is shown."""


def format_sample(word: str, sample: Sample, width: int) -> str:
    """Return a sample as lines of at most so many cells, safe for a terminal. word: what it is, as "best"."""
    return "\n".join([_fits(heading(word, sample), width), *format_sample_texts(sample, width)])


def heading(word: str, sample: Sample) -> str:
    """Return a line with a sample's numbers."""
    parts = [f"{name} {value:.4g}" for name, value in sample.scores.items()]
    tokens = f"{sample.length:,} token{'s' * (sample.length != 1)}"
    return "  ".join(
        [f"{word}:" if word else "", *parts, tokens, f"weights {sample.version}", format_row_id(sample.row)]
    ).strip()


def format_row_id(row: RowId) -> str:
    """Return which row of the data a sample is of, and which of its samples it is."""
    data, _, place, *number = row
    return f"{data} row {place}" + "".join(f", sample {at}" for at in number)


def format_sample_texts(sample: Sample, width: int) -> list[str]:
    """Return the lines of a sample's prompt and answer."""
    return [
        *format_text_lines("prompt", prompt_text(sample.prompt), width),
        *format_text_lines("answer", sample.answer, width),
    ]


def format_text_lines(name: str, text: str, width: int) -> list[str]:
    """Return a text as indented lines behind its name; of a long one the beginning and the end."""
    head = f"  {name}  "
    room = max(10, width - len(head))
    lines: list[str] = []
    for line in escape_controls(text).split("\n"):
        lines += _wrapped(line.replace("\t", "    "), room, 4 * _LINES - len(lines))
        if len(lines) >= 4 * _LINES:
            break
    if len(lines) > _LINES:
        left = len(text)
        lines = [*lines[: _LINES - 1], f"... ({left:,} characters)"]
    return [f"{head if at == 0 else ' ' * len(head)}{line}".rstrip() for at, line in enumerate(lines)]


def _wrapped(line: str, width: int, most: int) -> list[str]:
    """Return a line in pieces of at most so many cells; wide characters take two."""
    pieces: list[str] = []
    while cell_len(line) > width and len(pieces) < most:
        cut, used = 0, 0
        for character in line:
            used += cell_len(character)
            if used > width:
                break
            cut += 1
        cut = max(1, cut)
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def prompt_text(prompt: Any) -> str:
    """Return a prompt as text: of messages, each behind its role."""
    if isinstance(prompt, str):
        return prompt
    try:
        messages = parse_content(prompt, "prompt")
    except OddRow:
        return str(prompt)
    assert not isinstance(messages, str)
    return "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)


def _fits(line: str, width: int) -> str:
    line = escape_controls(line).replace("\n", "\\n")
    return line if cell_len(line) <= width else set_cell_size(line, width - 3) + "..."
