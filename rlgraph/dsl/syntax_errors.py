"""Explains tokens that the grammar does not allow in their place."""

from __future__ import annotations

from lark import Token

from rlgraph.dsl import words
from rlgraph.dsl.logical_lines import LogicalLine, LogicalLines, token_position
from rlgraph.errors import Diagnostic, Related, Span, closest_match, did_you_mean
from rlgraph.ops.tensor import COMPARISONS, INFIX, PREFIX

OPERATORS = {*INFIX, *PREFIX}
OPERANDS = ("NAME", "NUMBER", "STRING", "TRUE", "FALSE")
"""Kinds of tokens that are values by themselves."""

_ALIKE = 0.7
"""How similar a word has to be to one that begins a line, to be taken for it."""

_EXPECTED = {
    "STRING": "a string",
    "PLUS": "an operator",
    "COMMA": "`,`",
    "RPAR": "`)`",
    "RSQB": "`]`",
    "EQUAL": "`=`",
    "COLONEQUAL": "`:=`",
    "COLON": "`:`",
}
_EXPECTED_WORDS = {
    "ASYNC": "`async`",
    "FROM": "`from`",
    "ON": "`on`",
    "DEVICES": "`devices`",
    "CPUS": "`cpus`",
}
"""Words that are told only where no name can stand, since each of them may be a name."""


def explain_token(
    found: LogicalLines, line: LogicalLine, at: int, accepts: set[str], statement: bool = True
) -> Diagnostic:
    """Return the diagnostic for token `at` of a line (or its end), whose kind is not accepted there.

    The line is a `statement`, or an expression by itself.
    """
    token = _Unexpected(found, line, at, accepts)
    if not statement:
        return token.explain_lone_expression()
    if at == 0:
        return token.explain_line_start()
    if at == len(line.tokens):
        return token.explain_line_end()
    return (
        token.explain_inline_block()
        or token.explain_python_word()
        or token.explain_no_statement()
        or token.explain_in_expression()
    )


class _Unexpected:
    """The token at which a line stops making sense, and what may be wrong with it."""

    def __init__(self, logical: LogicalLines, line: LogicalLine, at: int, accepts: set[str]) -> None:
        self.logical = logical
        self.tokens = line.tokens
        self.at = at
        self.accepts = accepts
        self.first = line.tokens[0]
        self.before = line.tokens[at - 1]
        """The last token, where the mistake is the end of the line."""

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def make_diagnostic(
        self, code: str, message: str, where: Token | Span, hint: str = "", *related: Related
    ) -> Diagnostic:
        where = self.logical.span(where) if isinstance(where, Token) else where
        return Diagnostic(code, message, where, hint, related=related)

    def next_token_text(self, at: int) -> str:
        """Return the following token as it is written."""
        return str(self.tokens[at + 1]) if at + 1 < len(self.tokens) else ""

    def explain_in_expression(self) -> Diagnostic:
        """Return the diagnostic of a mistake that an expression may hold as well."""
        return (
            self.explain_keyword_as_name()
            or self.explain_equals_sign()
            or self.explain_chained_comparison()
            or self.explain_missing_comma()
            or self.explain_second_model()
            or self.make_diagnostic(
                "E0101", f"{quote_token(self.token)} cannot stand here", self.token, self.expected_phrase()
            )
        )

    def explain_lone_expression(self) -> Diagnostic:
        """Return the diagnostic where the line is an expression by itself."""
        if self.at == len(self.tokens):
            return self.explain_unfinished_line()
        return self.explain_python_word() or self.explain_in_expression()

    # The start and the end of a line

    def explain_line_start(self) -> Diagnostic:
        word, after = self.first, self.next_token_text(0)
        if word in words.KEYWORDS and after in ("=", ":="):
            return self.explain_keyword(word)
        if word == "from" and "import" in self.tokens:
            return self.make_diagnostic("E0113", words.PYTHON["import"], word)
        if word == "async":
            return self.make_diagnostic("E0101", "`async` cannot begin a line", word, "write `step async(lag=1):`")
        if word in words.HOMES:
            message = f"`{word}` cannot stand {self.place_phrase()}"
            return self.make_diagnostic("E0115", message, word, f"it belongs {words.HOMES[word]}")
        if word.type != "NAME":
            return self.make_diagnostic(
                "E0101", f"a line cannot begin with {quote_token(word)}", word, self.line_hint()
            )
        if word in words.PYTHON and after not in ("=", ":="):
            return self.make_diagnostic("E0113", words.PYTHON[word], word)
        if after in ("=", ":="):
            hint = f"move it inside `step:`, or write `param {word} = ...`, or `state {word} = ...`"
            if "POOL" in self.accepts and "PARAM" not in self.accepts:
                hint = "a schedule holds `pool`, `place`, `stream`, `send` and `refresh`"
            return self.make_diagnostic("E0115", f"`{word} {after} ...` cannot stand {self.place_phrase()}", word, hint)
        if after and self.tokens[1].type in OPERANDS or closest_match(word, words.HOMES, _ALIKE):
            return self.explain_unknown_word()
        return self.make_diagnostic(
            "E0124",
            "this computes something that is not used",
            self.line_span(),
            self.line_hint(),
        )

    def explain_line_end(self) -> Diagnostic:
        if "COLON" in self.accepts and self.first in words.HEADERS:
            message = f"a `:` is missing at the end of this `{self.first}`"
            return self.make_diagnostic("E0111", message, self.end_span(), "add it: a block follows")
        if self.before in OPERATORS:
            return self.explain_unfinished_line()
        return self.explain_python_word() or self.explain_no_statement() or self.explain_unfinished_line()

    def explain_unfinished_line(self) -> Diagnostic:
        if self.before in OPERATORS:
            message = f"nothing stands after `{self.before}`"
            return self.make_diagnostic("E0101", message, self.before, self.expected_phrase())
        return self.make_diagnostic("E0101", "the line ends too early", self.end_span(), self.expected_phrase())

    def end_span(self) -> Span:
        """Return one column, just after the line."""
        last = self.logical.span(self.before)
        return Span(last.source, last.end_line, last.end_column, last.end_line, last.end_column + 1)

    def line_span(self) -> Span:
        return self.logical.span(self.first, self.tokens[-1])

    def place_phrase(self) -> str:
        if "PARAM" in self.accepts:
            return "at the left margin"
        if "POOL" in self.accepts:
            return "in a schedule"
        if "AFTER" in self.accepts:
            return "in a `change:`"
        return "in a `def`" if "RETURN" in self.accepts else "inside a step"

    def line_hint(self) -> str:
        if "PARAM" in self.accepts:
            return "a line begins with a word as `param`, `model`, `data` or `step`"
        if "POOL" in self.accepts:
            return "a schedule holds `pool`, `place`, `stream`, `send` and `refresh`"
        if "RETURN" in self.accepts:
            return "a `def` holds statements, and a `return` at its end"
        return "give it a name, `x = ...`, or show it, `report x = ...`"

    # Words

    def explain_python_word(self) -> Diagnostic | None:
        """Return the diagnostic of Python's `if x:`, `a if c else b`, `lambda x: ...`."""
        named = self.next_token_text(0) in ("=", ":=")
        if self.first in words.PYTHON and self.at == 1 and not named:
            return self.make_diagnostic("E0113", words.PYTHON[self.first], self.first)
        for at in (self.at, self.at - 1):
            if at == 0 or at >= len(self.tokens) or self.tokens[at].type not in ("NAME", "IF"):
                continue
            if self.tokens[at] == "if":
                hint = "an `if` has lines of its own: choose a value with `where(condition, a, b)`"
                return self.make_diagnostic("E0113", hint, self.tokens[at])
            if "NAME" in self.accepts:
                continue
            if self.tokens[at] in ("else", "for", "lambda", "in", "is", "await"):
                return self.make_diagnostic("E0113", words.PYTHON[self.tokens[at]], self.tokens[at])
        if self.at < len(self.tokens) and self.token == "not" and self.next_token_text(self.at) == "in":
            return self.make_diagnostic("E0113", words.PYTHON["in"], self.token)
        return None

    def explain_no_statement(self) -> Diagnostic | None:
        """Return the diagnostic of a line that begins with a name, and is neither `x = ...` nor `x := ...`."""
        if self.first.type != "NAME":
            return None
        assigns = next((t for t in self.tokens if t in ("=", ":=") and self.bracket_depth(t) == 0), None)
        if (
            self.at < len(self.tokens)
            and self.next_token_text(0) == "["
            and self.token == "="
            and self.token is assigns
        ):
            return self.make_diagnostic("E0116", "a value is stored under a key with `:=`", self.token, "write `:=`")
        if self.at > 1 and not (assigns is None and self.is_behind_call()):
            return None
        second = self.tokens[1] if len(self.tokens) > 1 else None
        if assigns is not None and second in (",", ".") and assigns == "=":
            message = "a line names one value" if second == "," else "only a plain name can stand before `=`"
            return self.make_diagnostic(
                "E0101", message, self.logical.span(self.first, self.tokens[self.token_index(assigns) - 1])
            )
        if assigns is not None and second == ":":
            return self.make_diagnostic(
                "E0101",
                "a name has no type",
                self.tokens[1],
                f"write `{self.first} = ...`: the type is derived",
            )
        if second is not None and second.type in OPERANDS or closest_match(self.first, words.HOMES, _ALIKE):
            return self.explain_unknown_word()
        return self.make_diagnostic(
            "E0124", "this computes something that is not used", self.line_span(), self.line_hint()
        )

    def is_behind_call(self) -> bool:
        """Return whether the line begins with a call, and this is an operator behind it."""
        if self.at == len(self.tokens) or self.token not in (*OPERATORS, "."):
            return False
        return self.next_token_text(0) == "(" and self.before == ")" and self.bracket_depth(self.token) == 0

    def explain_unknown_word(self) -> Diagnostic:
        hint = did_you_mean(self.first, words.HOMES, alike=_ALIKE) or self.line_hint()
        return self.make_diagnostic("E0114", f"`{self.first}` begins no statement of the language", self.first, hint)

    def explain_keyword(self, token: Token) -> Diagnostic:
        hint = "choose another name, as `my_" + token + "`"
        if token in words.DECLARING and token is self.first:
            hint = f"write `{token} NAME = ...`, or choose another name"
        return self.make_diagnostic("E0112", f"`{token}` is a word of the language, it cannot be a name", token, hint)

    def explain_keyword_as_name(self) -> Diagnostic | None:
        if self.at == 1 and self.token in ("=", ":=") and self.first in words.KEYWORDS:
            return self.explain_keyword(self.first)
        if self.accepts == {"EQUAL"} and self.before in words.KEYWORDS:
            return self.explain_keyword(self.before)
        if self.token in words.KEYWORDS and "NAME" in self.accepts and self.token not in ("and", "or", "not"):
            return self.explain_keyword(self.token)
        return None

    def explain_second_model(self) -> Diagnostic | None:
        if self.first != "train" or self.token != "," or self.at != 2:
            return None
        hint = f"give each model a `train` of its own, one below the other: `train {self.before}(lr=1e-6):`"
        return self.make_diagnostic("E0101", "a `train` trains one model", self.token, hint)

    # Signs

    def bracket_depth(self, token: Token) -> int:
        """Return how many brackets are open at a token."""
        before = self.tokens[: self.token_index(token)]
        return sum((t in ("(", "[")) - (t in (")", "]")) for t in before)

    def token_index(self, token: Token) -> int:
        return next(at for at, t in enumerate(self.tokens) if t is token)

    def explain_inline_block(self) -> Diagnostic | None:
        if self.before == ":" and self.accepts == {"NEWLINE"}:
            where = self.logical.span(self.token, self.tokens[-1])
            return self.make_diagnostic(
                "E0110",
                "a block stands on lines of its own",
                where,
                "begin a new line, indented by four spaces",
            )
        return None

    def explain_equals_sign(self) -> Diagnostic | None:
        if self.token == ":=":
            if self.first.type == "NAME" and self.bracket_depth(self.token) == 0:
                return None
            hint = "`:=` stores in a `state`, on a line of its own inside a step"
            return self.make_diagnostic("E0116", "`:=` cannot stand here, write `=`", self.token, hint)
        if self.token != "=":
            return None
        if self.before in COMPARISONS:
            return self.make_diagnostic(
                "E0101", f"`{self.before}=` is no operator", self.logical.span(self.before, self.token)
            )
        if "EQUALEQUAL" in self.accepts:
            return self.make_diagnostic(
                "E0116", "`=` cannot stand inside an expression", self.token, "write `==` to compare"
            )
        return None

    def explain_chained_comparison(self) -> Diagnostic | None:
        """Return the diagnostic of `0 < x < 1`."""
        if self.token not in COMPARISONS or "PLUS" not in self.accepts or "NUMBER" in self.accepts:
            return None
        depth = self.bracket_depth(self.token)
        for earlier in reversed(self.tokens[: self.at]):
            if self.bracket_depth(earlier) == depth and earlier in COMPARISONS:
                first = Related(self.logical.span(earlier), "the first comparison")
                hint = "compare twice: `a < b and b < c`"
                return self.make_diagnostic("E0117", "comparisons cannot be chained", self.token, hint, first)
        return None

    def explain_missing_comma(self) -> Diagnostic | None:
        glued = token_position(self.before) == (self.token.line, token_position(self.token)[1] - len(self.before))
        if self.token.type == "STRING" and self.before.type == "NAME" and glued:
            where = self.logical.span(self.before, self.token)
            return self.make_diagnostic(
                "E0101", f"a string has no prefix `{self.before}`", where, "write the string alone"
            )
        if (
            "COMMA" in self.accepts
            and self.bracket_depth(self.token) > 0
            and self.token.type in (*OPERANDS, "LPAR", "LSQB")
        ):
            return self.make_diagnostic(
                "E0125", f"a `,` is missing before {quote_token(self.token)}", self.token, "separate values by `,`"
            )
        return None

    def expected_phrase(self) -> str:
        """Return what could stand there, in words."""
        kinds = self.accepts
        parts = ["a value"] if "NUMBER" in kinds else ["a name"] if "NAME" in kinds else []
        known = _EXPECTED if "NAME" in kinds else _EXPECTED | _EXPECTED_WORDS
        parts += [text for kind, text in known.items() if kind in kinds and not (kind in ("STRING", "PLUS") and parts)]
        if "WHERE" in kinds and "NUMBER" not in kinds and "NAME" not in kinds:
            parts.append("`where`")
        if "NEWLINE" in kinds:
            parts.append("the end of the line")
        if not parts:
            return "expected `(`" if "LPAR" in kinds else ""
        return "expected " + (", ".join(parts[:-1]) + " or " if len(parts) > 1 else "") + parts[-1]


def quote_token(token: Token) -> str:
    """Return a token as a message shows it."""
    text = str(token) if len(token) <= 30 else token[:27] + "..."
    return text if "`" in text else f"`{text}`"
