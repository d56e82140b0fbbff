"""Aligns the columns of a formatted program.

A user who lines up the `=` of some lines wants them to stay so; a user who does not, does not want it done. So a
paragraph (lines that follow one another, with no blank line between) is lined up again where half of it or more was,
and has single blanks otherwise. Comments at the ends of lines stay in their column where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

Paragraph = list["FormattedLine"]


@dataclass(slots=True, eq=False)
class FormattedLine:
    """A line of the formatted text."""

    number: int
    """The number of the line in the user's text."""
    indent: int
    head: str
    """The text of the line; where a column may be lined up, only `split` tells where."""
    inside: bool = False
    """Whether the line begins inside a bracket."""
    gap: bool = False
    """Whether a blank line stands above."""
    kind: str = ""
    """Rows of one kind are lined up with one another: those with `=`, those with `on`."""
    split: int = 0
    """How many characters of the text, plus one blank, stand before the `=`."""
    meant: int = 1
    """How many blanks the user left before the `=`."""
    blanks: int = 1
    """How many blanks stand there in the formatted text."""
    word: str = ""
    """The first word of a declaration."""
    word_blanks: int = 1
    """How many blanks stand after that word."""
    comment: str = ""
    """The comment at the end of the line."""
    comment_column: int = 0

    @property
    def is_comment(self) -> bool:
        """Whether the line is a comment and nothing else."""
        return self.head.startswith("#")

    @property
    def width_before_blanks(self) -> int:
        """The width of the text up to the blanks before the `=`."""
        return self.split + self.word_blanks - 1

    def code_text(self) -> str:
        """Return the line without its comment."""
        text = self.head
        if self.kind:
            text = text[: self.split] + " " * (self.blanks - 1) + text[self.split :]
        if self.word:
            text = self.word + " " * (self.word_blanks - 1) + text[len(self.word) :]
        return " " * self.indent + text

    def line_text(self) -> str:
        """Return the whole line."""
        code = self.code_text()
        return code + " " * (self.comment_column - len(code)) + self.comment if self.comment else code


def align_columns(rows: list[FormattedLine]) -> None:
    """Set how many blanks stand in every row."""
    paragraphs = list(_paragraphs(rows))
    for _, paragraph in paragraphs:
        _align_words(paragraph)
    columns = [_align(paragraph) for _, paragraph in paragraphs]
    for at, single_column in enumerate(columns):
        if single_column is None:
            continue
        adjoining, paragraph = paragraphs[at]
        # A column that only one row has is meant where an adjacent paragraph has it too.
        neighbors = [paragraphs[at - 1][1]] if adjoining else []
        if at + 1 < len(paragraphs) and paragraphs[at + 1][0]:
            neighbors.append(paragraphs[at + 1][1])
        if any(row.width_before_blanks + row.blanks == single_column for neighbor in neighbors for row in neighbor):
            padded = next(row for row in paragraph if row.meant > 1)
            padded.blanks = padded.meant
    _align_comments(rows)


def _paragraphs(rows: list[FormattedLine]) -> Iterator[tuple[bool, Paragraph]]:
    """Yield the paragraphs, each with whether only blank lines and comments separate it from the one above."""
    paragraph: Paragraph = []
    adjoining = gap = False
    for row in rows:
        gap = gap or row.gap
        if row.is_comment or row.inside:
            continue
        last = paragraph[-1] if paragraph else None
        follows = last is not None and (row.kind, row.indent) == (last.kind, last.indent)
        if last is not None and (gap or not follows):
            yield adjoining, paragraph
            paragraph = []
        if row.kind:
            if not paragraph:
                adjoining = follows
            paragraph.append(row)
        gap = False
    if paragraph:
        yield adjoining, paragraph


def _align_words(paragraph: Paragraph) -> None:
    """Align the names after the first words: `env shell` keeps its two blanks under `data tasks`."""
    columns = [len(row.word) + row.word_blanks for row in paragraph]
    for at, row in enumerate(paragraph):
        neighbors = [
            neighbor for neighbor in (*paragraph[max(0, at - 1) : at], *paragraph[at + 1 : at + 2]) if neighbor.word
        ]
        if not row.word or columns[at] not in [len(neighbor.word) + 1 for neighbor in neighbors]:
            row.word_blanks = 1


def _align(paragraph: Paragraph) -> int | None:
    """Line up a paragraph as the user meant it; return the column that only one row has, if there is one."""
    columns = [row.width_before_blanks + row.meant for row in paragraph]
    padded = {column for column, row in zip(columns, paragraph, strict=True) if row.meant > 1}
    column, rows = _favourite(columns)
    if not padded or rows < 2 or 2 * rows < len(paragraph):
        _line_up(paragraph, 0)
        return min(padded) if len(padded) == 1 and columns.count(min(padded)) == 1 else None
    settled = 0
    # Rows too long for the column may come to share one further right: repeat until nothing moves.
    while column != settled:
        _line_up(paragraph, column)
        settled = column
        column, _ = _favourite([row.width_before_blanks + row.blanks for row in paragraph])
    return None


def _favourite(columns: list[int]) -> tuple[int, int]:
    """Return the column that most rows have, and how many have it."""
    return max(Counter(columns).items(), key=lambda item: (item[1], item[0]))


def _line_up(paragraph: Paragraph, column: int) -> None:
    for row in paragraph:
        row.blanks = max(1, column - row.width_before_blanks)


def _align_comments(rows: list[FormattedLine]) -> None:
    """Keep comments that share a column, on consecutive lines, in one column after the code."""
    group: list[FormattedLine] = []
    for row, below in pairwise([*rows, FormattedLine(0, 0, "")]):
        if not row.comment:
            continue
        group.append(row)
        if below.comment and not below.gap and below.comment_column == row.comment_column:
            continue
        column = max(group[0].comment_column, *(len(member.code_text()) + 2 for member in group))
        for member in group:
            member.comment_column = column
        group = []
