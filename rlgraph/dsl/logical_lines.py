"""A text cut into logical lines of tokens, with its indentation: where parser and formatter start from."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field
from functools import cache

from lark import Token
from lark.lexer import BasicLexer, LexerThread

from rlgraph.dsl import words
from rlgraph.dsl.tables import parser
from rlgraph.dsl.tree import Comment
from rlgraph.errors import Diagnostic, Related, Source, Span

MAX_BRACKETS = 100
MAX_BLOCKS = 40

OPENING = {"LPAR": "RPAR", "LSQB": "RSQB"}
SIGNS = {"LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]"}

_NUMBER = re.compile(r"(\d+(_\d+)*)?(\.(\d+(_\d+)*)?)?([eE][+-]?\d+(_\d+)*)?")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class Line:
    """One logical line: as many lines of the text as its brackets span."""

    tokens: list[Token]
    """Without comments, blanks and ends of line."""
    level: int = 0
    """How many blocks it stands in."""
    bad: bool = False
    """A mistake in it has been told; it is not to be parsed."""


@dataclass(slots=True)
class Lines:
    """All logical lines of a text."""

    source: Source
    lines: list[Line] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def span(self, first: Token, last: Token | None = None) -> Span:
        """From the start of `first` to the end of `last`."""
        return span(self.source, first, last)

    def fail(self, code: str, message: str, where: Span, hint: str = "", *related: Related) -> None:
        """Note a mistake."""
        self.diagnostics.append(Diagnostic(code, message, where, hint, related=related))


def span(source: Source, first: Token, last: Token | None = None) -> Span:
    """From the start of `first` to the end of `last`."""
    last = last or first
    line, column = position(first)
    end_line, end_column = position(last)
    return Span(source, line, column, end_line, end_column + len(last))


def position(token: Token) -> tuple[int, int]:
    """Line and column of a token, counted from 1."""
    assert token.line is not None and token.column is not None
    return token.line, token.column


def read(source: Source, indented: bool = True) -> Lines:
    """Cut a text into logical lines; what is wrong with its characters, brackets and indentation is noted.

    An expression by itself is not `indented`: it may begin anywhere.
    """
    found = Lines(source)
    if _forbidden(found):
        return found
    text = source.text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    _join(found, text)
    if indented:
        _indent(found, text.split("\n"))
    return found


def _forbidden(found: Lines) -> bool:
    """Note characters that no text may hold: editors hide them, and some end a line for Python alone."""
    for match in _FORBIDDEN.finditer(found.source.text):
        before = (found.source.text[: match.start()] + "x").splitlines()
        where = Span(found.source, len(before), len(before[-1]), len(before), len(before[-1]) + 1)
        found.fail("E0121", f"the character U+{ord(match[0]):04X} cannot stand in a program", where, "delete it")
        if len(found.diagnostics) == 20:
            break
    return bool(found.diagnostics)


# Tokens to logical lines


def _join(found: Lines, text: str) -> None:
    line = Line([])
    open_brackets: list[Token] = []
    fresh = True  # no token yet on this line of the text
    tokens = _tokens(found, text)
    for at, token in enumerate(tokens):
        if token.type == "NEWLINE":
            fresh = True
            if line.tokens and not open_brackets:
                found.lines.append(line)
                line = Line([])
            continue
        if fresh and open_brackets and _starts_statement(tokens, at, line.tokens[-1]):
            _unclosed(found, line, open_brackets)
            found.lines.append(line)
            line, open_brackets = Line([]), []
        fresh = False
        line.tokens.append(token)
        if token.type in OPENING:
            open_brackets.append(token)
            if len(open_brackets) == MAX_BRACKETS + 1:
                line.bad = True
                hint = "give the inner expression a name on a line of its own"
                found.fail("E0120", f"brackets are nested more than {MAX_BRACKETS} deep", found.span(token), hint)
        elif token.type in OPENING.values():
            _close(found, line, token, open_brackets)
        elif token.type in ("UNCLOSED", "FOREIGN", "STRAY", "NUMBER") and not line.bad:
            _check(found, line, token)
    if open_brackets:
        _unclosed(found, line, open_brackets)
    if line.tokens:
        found.lines.append(line)


@cache
def _lexer() -> BasicLexer:
    """It gives blanks and comments, too. `Lark.lex` would make it anew for each text, which takes as long as to parse
    one."""
    settings = copy(parser().lexer_conf)
    settings.ignore = ()
    return BasicLexer(settings)


def _tokens(found: Lines, text: str) -> list[Token]:
    """All tokens but blanks and comments; the comments are kept aside."""
    tokens = []
    end_of_last = 0
    for token in LexerThread.from_text(_lexer(), text).lex(None):  # type: ignore[no-untyped-call]
        if token.type == "BLANK":
            continue
        line, column = position(token)
        if token.type == "COMMENT":
            found.comments.append(Comment(str(token).rstrip(), line, column, alone=end_of_last != line))
            continue
        if token.type != "NEWLINE":
            end_of_last = line
        tokens.append(token)
    return tokens


def _starts_statement(tokens: list[Token], at: int, before: Token) -> bool:
    """Whether a line inside a bracket looks like the next statement: then the bracket was never closed."""
    token, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
    if before == "." or not (token in words.HOMES or token.type == "NAME"):
        return False
    if after == "=":
        return before not in (",", "(", "[")  # else it is an option
    return after == ":=" or (token in words.HOMES and after not in (")", "]", ",", "."))


def _unclosed(found: Lines, line: Line, open_brackets: list[Token]) -> None:
    if line.bad:
        return
    line.bad = True
    token = open_brackets[-1]
    close = SIGNS[OPENING[token.type]]
    found.fail("E0102", f"this `{token}` is never closed", found.span(token), f"add the `{close}` that belongs to it")


def _close(found: Lines, line: Line, token: Token, open_brackets: list[Token]) -> None:
    if not open_brackets:
        if not line.bad:
            found.fail("E0103", f"this `{token}` closes nothing", found.span(token), "delete it, or open its bracket")
        line.bad = True
        return
    opened = open_brackets.pop()
    wanted = SIGNS[OPENING[opened.type]]
    if token != wanted and not line.bad:
        related = Related(found.span(opened), "opened here")
        found.fail(
            "E0103",
            f"this `{token}` does not close `{opened}`",
            found.span(token),
            f"write `{wanted}`",
            related,
        )
        line.bad = True


def _check(found: Lines, line: Line, token: Token) -> None:
    """Note what is wrong with a token by itself."""
    where = found.span(token)
    if token.type == "NUMBER":
        problem = _number_problem(token)
        if problem is None:
            return
        found.fail(
            "E0106",
            f"`{_short(token)}` is not a number{problem}",
            where,
            "numbers are written 12, 1_000, 0.5, 1e-6",
        )
    elif token.type == "UNCLOSED":
        hint = f"add the closing {token[0]}; a string ends on the line where it begins"
        found.fail("E0104", "this string is never closed", where, hint)
    elif len(token) > 1 and token.endswith("="):
        hint = f"write `x = x {token[:-1]} ...`, or `x := x {token[:-1]} ...` where x is a state"
        found.fail("E0105", f"`{token}` is not in the language", where, hint)
    elif token.isascii():
        found.fail("E0105", f"`{token}` is not in the language", where, words.OPERATORS.get(token, ""))
    else:
        found.fail("E0105", f"`{_short(token)}` can only stand in a string or a comment", where, _lookalike(token))
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


def _indent(found: Lines, text: list[str]) -> None:
    """Give every logical line its level."""
    widths = [0]  # of the open blocks
    opened = [True]  # and whether a header opened each
    char = ""  # what this file indents with
    confused = False  # its blanks are mixed: widths mean little
    for before, line in zip([None, *found.lines], found.lines, strict=False):
        first = line.tokens[0]
        number, column = position(first)
        white = text[number - 1][: column - 1]
        char = char or white[:1]
        if white.strip(char) and not confused:
            confused = True
            _mixed(found, first, white, char)
        width = len(white.expandtabs(4))
        header = before is not None and _is_header(before)
        deeper = width > widths[-1]
        if before is not None and header and not deeper:
            _no_block(found, before)
        if deeper:
            opened.append(header or (before is not None and _lacks_colon(before)))
            widths.append(width)
            if not opened[-1] and not confused and not (before and before.bad):
                _stranded(found, line)
            if len(widths) == MAX_BLOCKS + 2:
                found.fail("E0120", f"blocks are nested more than {MAX_BLOCKS} deep", found.span(first))
        elif width not in widths and not confused:
            hint = "start it below a line of the block that it belongs to"
            found.fail("E0109", "this line begins between two levels of indentation", found.span(first), hint)
            width = min(reversed(widths), key=lambda level: abs(level - width))
        while width < widths[-1]:
            widths.pop()
            opened.pop()
        line.level = sum(opened) - 1
    if found.lines and _is_header(found.lines[-1]):
        _no_block(found, found.lines[-1])


def _is_header(line: Line) -> bool:
    return line.tokens[-1].type == "COLON"


def _lacks_colon(line: Line) -> bool:
    """Whether a block may have been meant: the parser asks for the `:`."""
    return line.tokens[0] in words.HEADERS and (line.tokens[0] != "schedule" or len(line.tokens) == 1)


def _stranded(found: Lines, line: Line) -> None:
    message = "this line is indented under a line that opens no block"
    hint = "start the line below the one before it, unless that was to end in `:`"
    if not line.bad:
        found.fail("E0108", message, found.span(line.tokens[0]), hint)
    line.bad = True


def _mixed(found: Lines, first: Token, white: str, char: str) -> None:
    line, column = position(first)
    where = Span(found.source, line, 1, line, column)
    here, elsewhere = ("a tab", "spaces") if char == " " else ("spaces", "tabs")
    hint = f"indent every line with {elsewhere}"
    found.fail("E0107", f"this line is indented with {here}, the lines before it with {elsewhere}", where, hint)


def _no_block(found: Lines, line: Line) -> None:
    if line.bad:
        return
    line.bad = True
    where = found.span(line.tokens[0], line.tokens[-1])
    hint = "indent the lines of the block by four spaces, or delete this line"
    found.fail("E0110", "an indented block is missing after this line", where, hint)
