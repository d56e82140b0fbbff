"""Formats a program: text becomes tidy text, with every comment where it was.

The text is laid out from its tokens, not from its tree, so brackets, line breaks inside brackets and the spelling of
numbers stay the user's. Blanks, indentation, quotes and blank lines become canonical; columns that the user lined up
stay lined up (`text_alignment.py`).
"""

from __future__ import annotations

from lark import Token

from rlgraph.dsl import words
from rlgraph.dsl.logical_lines import LogicalLine, read_logical_lines, token_position
from rlgraph.dsl.parse import parse
from rlgraph.dsl.syntax_errors import OPERANDS
from rlgraph.dsl.text_alignment import FormattedLine, align_columns
from rlgraph.dsl.tree import Comment
from rlgraph.errors import Source

INDENT = 4


def format_source(source: Source) -> str:
    """Return the text of a program in canonical layout. Raises ProgramError if it is not a program."""
    parse(source)
    logical = read_logical_lines(source)
    rows = _rows(logical.lines, logical.comments)
    align_columns(rows)
    return "".join(("\n" if row.gap else "") + row.line_text() + "\n" for row in rows)


def _rows(lines: list[LogicalLine], comments: list[Comment]) -> list[FormattedLine]:
    """Return the lines of the formatted text, in order, without alignment."""
    pending = [comment for comment in comments if comment.alone]
    trailing = {comment.line: comment for comment in comments if not comment.alone}
    rows: list[FormattedLine] = []
    widths: list[int] = []  # of the blocks that are open at the last line, as the user indented them
    for line in lines:
        first, last = line.tokens[0].line or 0, line.tokens[-1].line or 0
        before = _until(pending, first)
        rows += [_comment(comment, _level(comment, widths, line.level)) for comment in before]
        widths = [*widths[: line.level], token_position(line.tokens[0])[1]]
        rows += _line_rows(line, _until(pending, last), trailing)
    rows += [_comment(comment, _level(comment, widths, 0)) for comment in pending]
    for above, below in zip(rows, rows[1:], strict=False):
        below.gap = below.number > above.number + 1 and not below.inside
    return rows


def _until(pending: list[Comment], line: int) -> list[Comment]:
    """Take and return the comments before a line."""
    taken = [comment for comment in pending if comment.line < line]
    del pending[: len(taken)]
    return taken


def _comment(comment: Comment, level: int) -> FormattedLine:
    return FormattedLine(comment.line, INDENT * level, comment.text)


def _level(comment: Comment, widths: list[int], below: int) -> int:
    """Return the level of a comment: that of the line below it, or of a block that ends above if it is indented like
    that."""
    inner = [level for level, width in enumerate(widths) if width <= comment.column and level > below]
    return max(inner, default=below)


def _line_rows(line: LogicalLine, comments: list[Comment], trailing: dict[int, Comment]) -> list[FormattedLine]:
    """Return the rows of a logical line, broken inside its brackets where the user broke it."""
    rows: list[FormattedLine] = []
    tokens = line.tokens
    brackets: list[int] = []  # for each open bracket the row in which it was opened
    base = INDENT * line.level
    number = 0
    for at, token in enumerate(tokens):
        if token.line != number:
            number = token.line or 0
            rows += [
                FormattedLine(c.line, base + INDENT * len(set(brackets)), c.text, inside=True)
                for c in _until(comments, number)
            ]
            closing = _closers(tokens, at)
            still_open = brackets[: len(brackets) - closing]
            rows.append(FormattedLine(number, base + INDENT * len(set(still_open)), "", inside=at > 0))
            if number in trailing:
                rows[-1].comment, rows[-1].comment_column = trailing[number].text, trailing[number].column - 1
        else:
            _mark(rows[-1], tokens, at, len(brackets))
            rows[-1].head += _gap(tokens, at, len(brackets))
        if token in ("(", "["):
            brackets.append(len(rows))
        elif token in (")", "]"):
            brackets.pop()
        rows[-1].head += _spelled(token)
    return rows


def _closers(tokens: list[Token], at: int) -> int:
    """Return how many brackets close at the start of a line."""
    count = 0
    while at + count < len(tokens) and tokens[at + count] in (")", "]"):
        count += 1
    return count


def _mark(row: FormattedLine, tokens: list[Token], at: int, depth: int) -> None:
    """Note on the row where the user may have lined up columns, and with how many blanks."""
    token, first = tokens[at], tokens[0]
    if row.inside or depth or row.kind:
        return
    if at == 1 and first in (*words.DECLARING, "pool"):
        row.word, row.word_blanks = str(first), _blanks(tokens, at)
    begins_with_name = first.type == "NAME" or first in (*words.DECLARING, *words.SOFT)
    if (begins_with_name and token in ("=", ":=")) or (first == "place" and token == "on" and tokens[at - 1] != "."):
        row.kind, row.meant, row.split = str(token).lstrip(":"), _blanks(tokens, at), len(row.head)


def _blanks(tokens: list[Token], at: int) -> int:
    """Return how many blanks the user left before a token; one where there were none."""
    _, end = token_position(tokens[at - 1])
    return max(1, token_position(tokens[at])[1] - end - len(tokens[at - 1]))


def _gap(tokens: list[Token], at: int, depth: int) -> str:
    """Return what stands between a token and the one before it."""
    before, token = tokens[at - 1], tokens[at]
    if before in ("(", "[", ".") or token in (")", "]", ",", ".", ":") or "**" in (before, token):
        return ""
    if "=" in (before, token):
        return "" if depth else " "
    if before in ("-", "+") and not _ends_operand(tokens, at - 2):
        return ""
    if token in ("(", "[") and (_ends_operand(tokens, at - 1) or before == "async" or _is_function(tokens, at - 1)):
        return ""
    return " "


def _ends_operand(tokens: list[Token], at: int) -> bool:
    """Return whether an operator after this token has a left side."""
    if at < 0:
        return False
    return tokens[at].type in OPERANDS or tokens[at] in (")", "]") or (at > 0 and tokens[at - 1] == ".")


def _is_function(tokens: list[Token], at: int) -> bool:
    """Return whether this is the `where` of `where(condition, a, b)`, not that of `keep T where condition` or `stop
    where condition`."""
    return tokens[at] == "where" and (tokens[0], at) not in (("keep", 2), ("stop", 1))


def _spelled(token: Token) -> str:
    """Return a token with a string in double quotes, unless there are any inside."""
    if token.type == "STRING" and token[0] == "'" and '"' not in token and "\\" not in token:
        return f'"{token[1:-1]}"'
    return str(token)
