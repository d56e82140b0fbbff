"""Cuts a text into logical lines of tokens with their indentation, from which parser and formatter start."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field
from functools import cache

from lark import Token
from lark.lexer import BasicLexer, LexerThread

from rlgraph.dsl import words
from rlgraph.dsl.lark_parser import parser
from rlgraph.dsl.tree import Comment
from rlgraph.errors import Diagnostic, Related, Source, Span

MAX_BRACKETS = 100
MAX_BLOCKS = 40

OPENING = {"LPAR": "RPAR", "LSQB": "RSQB"}
SIGNS = {"LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]"}

_NUMBER = re.compile(r"(\d+(_\d+)*)?(\.(\d+(_\d+)*)?)?([eE][+-]?\d+(_\d+)*)?")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class LogicalLine:
    """One logical line: as many lines of the text as its brackets span."""

    tokens: list[Token]
    """The tokens without comments, blanks and line ends."""
    level: int = 0
    """The number of blocks that the line stands in."""
    bad: bool = False
    """Whether a mistake in the line has been reported; then it is not parsed."""


@dataclass(slots=True)
class LogicalLines:
    """The logical lines of a text."""

    source: Source
    lines: list[LogicalLine] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def span(self, first: Token, last: Token | None = None) -> Span:
        """Return the span from the start of `first` to the end of `last`."""
        last = last or first
        line, column = token_position(first)
        end_line, end_column = token_position(last)
        return Span(self.source, line, column, end_line, end_column + len(last))

    def add_mistake(self, code: str, message: str, where: Span, hint: str = "", *related: Related) -> None:
        """Note a mistake."""
        self.diagnostics.append(Diagnostic(code, message, where, hint, related=related))


def token_position(token: Token) -> tuple[int, int]:
    """Return the line and the column of a token, counted from 1."""
    assert token.line is not None and token.column is not None
    return token.line, token.column


def read_logical_lines(source: Source, indented: bool = True) -> LogicalLines:
    """Cut a text into logical lines; mistakes in its characters, brackets and indentation are noted.

    An expression by itself is not `indented`: it may begin anywhere.
    """
    logical = LogicalLines(source)
    if _note_forbidden(logical):
        return logical
    text = source.text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    _join_lines(logical, text)
    if indented:
        _set_levels(logical, text.split("\n"))
    return logical


def _note_forbidden(logical: LogicalLines) -> bool:
    """Note characters that no text may hold: editors hide them, and some end a line for Python alone."""
    for match in _FORBIDDEN.finditer(logical.source.text):
        before = (logical.source.text[: match.start()] + "x").splitlines()
        where = Span(logical.source, len(before), len(before[-1]), len(before), len(before[-1]) + 1)
        logical.add_mistake(
            "E0121", f"the character U+{ord(match[0]):04X} cannot stand in a program", where, "delete it"
        )
        if len(logical.diagnostics) == 20:
            break
    return bool(logical.diagnostics)


# Tokens to logical lines


def _join_lines(logical: LogicalLines, text: str) -> None:
    line = LogicalLine([])
    open_brackets: list[Token] = []
    fresh = True  # no token yet on this line of the text
    tokens = _tokens(logical, text)
    for at, token in enumerate(tokens):
        if token.type == "NEWLINE":
            fresh = True
            if line.tokens and not open_brackets:
                logical.lines.append(line)
                line = LogicalLine([])
            continue
        if fresh and open_brackets and _starts_statement(tokens, at, line.tokens[-1]):
            _note_unclosed(logical, line, open_brackets)
            logical.lines.append(line)
            line, open_brackets = LogicalLine([]), []
        fresh = False
        line.tokens.append(token)
        if token.type in OPENING:
            open_brackets.append(token)
            if len(open_brackets) == MAX_BRACKETS + 1:
                line.bad = True
                hint = "give the inner expression a name on a line of its own"
                logical.add_mistake(
                    "E0120", f"brackets are nested more than {MAX_BRACKETS} deep", logical.span(token), hint
                )
        elif token.type in OPENING.values():
            _close_bracket(logical, line, token, open_brackets)
        elif token.type in ("UNCLOSED", "FOREIGN", "STRAY", "NUMBER") and not line.bad:
            _check_token(logical, line, token)
    if open_brackets:
        _note_unclosed(logical, line, open_brackets)
    if line.tokens:
        logical.lines.append(line)


@cache
def _lexer() -> BasicLexer:
    """Return a lexer that yields blanks and comments, too. `Lark.lex` would make it anew for each text, which takes as
    long as to parse one."""
    settings = copy(parser().lexer_conf)
    settings.ignore = ()
    return BasicLexer(settings)


def _tokens(logical: LogicalLines, text: str) -> list[Token]:
    """Return all tokens but blanks and comments; the comments are kept aside."""
    tokens = []
    end_of_last = 0
    for token in LexerThread.from_text(_lexer(), text).lex(None):  # type: ignore[no-untyped-call]
        if token.type == "BLANK":
            continue
        line, column = token_position(token)
        if token.type == "COMMENT":
            logical.comments.append(Comment(str(token).rstrip(), line, column, alone=end_of_last != line))
            continue
        if token.type != "NEWLINE":
            end_of_last = line
        tokens.append(token)
    return tokens


def _starts_statement(tokens: list[Token], at: int, before: Token) -> bool:
    """Return whether a line inside a bracket looks like the next statement: then the bracket was never closed."""
    token, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
    if before == "." or not (token in words.HOMES or token.type == "NAME"):
        return False
    if after == "=":
        return before not in (",", "(", "[")  # else it is an option
    return after == ":=" or (token in words.HOMES and after not in (")", "]", ",", "."))


def _note_unclosed(logical: LogicalLines, line: LogicalLine, open_brackets: list[Token]) -> None:
    if line.bad:
        return
    line.bad = True
    token = open_brackets[-1]
    close = SIGNS[OPENING[token.type]]
    logical.add_mistake(
        "E0102", f"this `{token}` is never closed", logical.span(token), f"add the `{close}` that belongs to it"
    )


def _close_bracket(logical: LogicalLines, line: LogicalLine, token: Token, open_brackets: list[Token]) -> None:
    if not open_brackets:
        if not line.bad:
            logical.add_mistake(
                "E0103", f"this `{token}` closes nothing", logical.span(token), "delete it, or open its bracket"
            )
        line.bad = True
        return
    opened = open_brackets.pop()
    wanted = SIGNS[OPENING[opened.type]]
    if token != wanted and not line.bad:
        related = Related(logical.span(opened), "opened here")
        logical.add_mistake(
            "E0103",
            f"this `{token}` does not close `{opened}`",
            logical.span(token),
            f"write `{wanted}`",
            related,
        )
        line.bad = True


def _check_token(logical: LogicalLines, line: LogicalLine, token: Token) -> None:
    """Note a mistake in a token by itself."""
    where = logical.span(token)
    if token.type == "NUMBER":
        problem = _number_problem(token)
        if problem is None:
            return
        logical.add_mistake(
            "E0106",
            f"`{_short(token)}` is not a number{problem}",
            where,
            "numbers are written 12, 1_000, 0.5, 1e-6",
        )
    elif token.type == "UNCLOSED":
        hint = f"add the closing {token[0]}; a string ends on the line where it begins"
        logical.add_mistake("E0104", "this string is never closed", where, hint)
    elif len(token) > 1 and token.endswith("="):
        hint = f"write `x = x {token[:-1]} ...`, or `x := x {token[:-1]} ...` where x is a state"
        logical.add_mistake("E0105", f"`{token}` is not in the language", where, hint)
    elif token.isascii():
        logical.add_mistake("E0105", f"`{token}` is not in the language", where, words.OPERATORS.get(token, ""))
    else:
        logical.add_mistake(
            "E0105", f"`{_short(token)}` can only stand in a string or a comment", where, _lookalike(token)
        )
    line.bad = True


def _number_problem(token: Token) -> str | None:
    if _NUMBER.fullmatch(token) is None or token == ".":
        return ""
    if token.isdecimal() and len(token) > 18:
        return " of a size that can be computed with"
    return " of a size that can be computed with" if float(token) == float("inf") else None


def _lookalike(token: Token) -> str:
    plain = {
        "“": '"',
        "”": '"',
        "‘": "'",
        "’": "'",
        "–": "-",
        "—": "-",
        "−": "-",
        "×": "*",
        "≤": "<=",
        "≥": ">=",
        "≠": "!=",
    }
    if token[0] in plain:
        return f"write `{plain[token[0]]}`"
    return "write a plain space" if token.isspace() else "names are made of a to z, A to Z, 0 to 9 and _"


def _short(token: str) -> str:
    return token if len(token) <= 30 else token[:27] + "..."


# Indentation


def _set_levels(logical: LogicalLines, text: list[str]) -> None:
    """Give every logical line its level."""
    widths = [0]  # of the open blocks
    opened = [True]  # whether a header opened each
    char = ""  # the character that this file indents with
    confused = False  # its blanks are mixed: widths mean little
    for before, line in zip([None, *logical.lines], logical.lines, strict=False):
        first = line.tokens[0]
        number, column = token_position(first)
        white = text[number - 1][: column - 1]
        char = char or white[:1]
        if white.strip(char) and not confused:
            confused = True
            _note_mixed(logical, first, char)
        width = len(white.expandtabs(4))
        header = before is not None and _is_header(before)
        deeper = width > widths[-1]
        if before is not None and header and not deeper:
            _note_no_block(logical, before)
        if deeper:
            opened.append(header or (before is not None and _lacks_colon(before)))
            widths.append(width)
            if not opened[-1] and not confused and not (before and before.bad):
                _note_stranded(logical, line)
            if len(widths) == MAX_BLOCKS + 2:
                logical.add_mistake("E0120", f"blocks are nested more than {MAX_BLOCKS} deep", logical.span(first))
        elif width not in widths and not confused:
            hint = "start it below a line of the block that it belongs to"
            logical.add_mistake(
                "E0109", "this line begins between two levels of indentation", logical.span(first), hint
            )
            width = min(reversed(widths), key=lambda level: abs(level - width))
        while width < widths[-1]:
            widths.pop()
            opened.pop()
        line.level = sum(opened) - 1
    if logical.lines and _is_header(logical.lines[-1]):
        _note_no_block(logical, logical.lines[-1])


def _is_header(line: LogicalLine) -> bool:
    return line.tokens[-1].type == "COLON"


def _lacks_colon(line: LogicalLine) -> bool:
    """Return whether a block may have been meant: then the parser asks for the `:`."""
    if line.tokens[0] in words.SOFT and line.tokens[1:2] in (["="], [":="]):
        return False  # It is a name.
    return line.tokens[0] in words.HEADERS and (line.tokens[0] != "schedule" or len(line.tokens) == 1)


def _note_stranded(logical: LogicalLines, line: LogicalLine) -> None:
    message = "this line is indented under a line that opens no block"
    hint = "start the line below the one before it, unless that was to end in `:`"
    if not line.bad:
        logical.add_mistake("E0108", message, logical.span(line.tokens[0]), hint)
    line.bad = True


def _note_mixed(logical: LogicalLines, first: Token, char: str) -> None:
    line, column = token_position(first)
    where = Span(logical.source, line, 1, line, column)
    here, elsewhere = ("a tab", "spaces") if char == " " else ("spaces", "tabs")
    hint = f"indent every line with {elsewhere}"
    logical.add_mistake(
        "E0107", f"this line is indented with {here}, the lines before it with {elsewhere}", where, hint
    )


def _note_no_block(logical: LogicalLines, line: LogicalLine) -> None:
    if line.bad:
        return
    line.bad = True
    where = logical.span(line.tokens[0], line.tokens[-1])
    hint = "indent the lines of the block by four spaces, or delete this line"
    logical.add_mistake("E0110", "an indented block is missing after this line", where, hint)
