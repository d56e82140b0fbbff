"""Says what is wrong with what a column of the data holds, where a program uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.columns import ABSENT, EVERY_ROW, NO_KEYS, NOT_IN_A_TEXT, NUMBERS, WORDS, Column, is_message
from rlgraph.conversations import RowFormat
from rlgraph.errors import Diagnostic, Span, did_you_mean, quoted_list
from rlgraph.ir.graph import Apply, Const, Node
from rlgraph.ops import attribute_value

_MANY = {
    "text": "texts",
    "whole": "whole numbers",
    "real": "real numbers",
    "truth": "true or false",
    "messages": "lists of messages",
    "nested": "lists",
    "object": "objects",
    "other": "what is neither text nor number",
    "large": "whole numbers of more than 64 bits",
    "wide": "numbers that 32 bits cannot hold",
    "odd": "numbers that are not finite",
}

_REMEDIES = {
    "text": "write numbers, `true` and `false` without quotes in the data",
    "null": "write a number in every row, or keep the rows that have one in a file of their own",
    "odd": "write a number in every row: NaN and infinity go on into every sum",
    "wide": "divide by what makes it of the size of others",
    "large": "write it as a text: whole numbers have 64 bits",
}

_AS_TEXT = "write it as a text in the data, in quotes; a csv file has none that count: write JSON lines"

PROMPT_NAMES = ("question", "instruction", "query", "problem", "input")
"""Names under which people publish prompts, beside `prompt`."""
_ANSWER_NAMES = ("completion", "response", "output", "answer", "solution", "target", "chosen", "preferred_output")
"""Names under which they publish answers."""


def columns_to_encode(rows: str, columns: Collection[str]) -> str:
    """Return how columns that `encode` does not know together are named; empty where no name tells. rows: the table."""
    if {"chosen", "rejected"} <= {*columns}:
        return f'name the answer: `encode({rows}, answer="chosen")`, and `answer="rejected"` beside it'
    prompt = next((name for name in ("prompt", *PROMPT_NAMES) if name in columns), None)
    answer = next((name for name in _ANSWER_NAMES if name in columns), None)
    if prompt and answer:
        # In OpenAI's pairs the messages are in an object.
        prompt += ".messages" if answer == "preferred_output" else ""
        return f"name them: `encode({rows}.{prompt}, {rows}.{answer})` for example"
    if prompt:
        return f"there is no column of answers to learn; to answer the prompts: `generate({rows}.{prompt}, ...)`"
    return ""


def column_to_ask(rows: str, columns: Sequence[str]) -> str:
    """Return how a column of prompts is named that is called otherwise. rows: the table."""
    if {"instruction", "input"} <= {*columns}:
        return f'name both: `user("{{{rows}.instruction}}\\n{{{rows}.input}}")`'
    names = [name for name in columns if name.isidentifier()]
    if names:
        usual = (*PROMPT_NAMES, "messages", "conversations")
        return f"name the column: `{rows}.{next((name for name in usual if name in names), names[0])}`"
    has = quoted_list([*columns][:4], "and")
    return f"it has {has}: the first line of a csv file names its columns, such as `prompt`" if columns else ""


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column at the place where the program uses it."""

    source: str
    """The name of the data source."""
    name: str
    column: Column
    span: Span
    """The place where the column is named."""

    @property
    def as_written(self) -> str:
        """The use as the program writes it, if its text is at hand."""
        text = self.span.covered_text if self.span.line else ""
        return f"`{text}`" if text and "\n" not in text and len(text) < 40 else f"the column `{self.name}`"

    @property
    def value_kinds(self) -> list[str]:
        """The kinds of values that the column holds, without those that it lacks."""
        return [kind for kind in self.column.first if kind not in ("missing", "null")]

    @property
    def kinds_text(self) -> str:
        """The kinds of values for a message, with the place of the first of each."""
        parts = [f"{_MANY[kind]}{self._place(kind)}" for kind in self.value_kinds]
        return " and ".join(parts)

    @property
    def comparison_side(self) -> str:
        """The kind of the column as a side of a comparison: `texts`, `numbers`, `mixed`, `neither`, or "" if it is
        unknown."""
        kinds = set(self.value_kinds)
        if not kinds:
            return ""
        if kinds == {"text"}:
            return "texts"
        if kinds <= {*NUMBERS, "odd", "wide", "large"}:
            return "numbers"
        return "mixed" if "text" in kinds else "neither"

    @property
    def part_hint(self) -> str:
        """The hint that names what the column's objects hold; empty where it holds none, or nobody knows what is in
        them."""
        held = [*self.column.fields][:4] if self.column.fields else []
        return f"name what is in it: {quoted_list([f'{self.name}.{name}' for name in held], 'or')}" if held else ""

    def _place(self, kind: str) -> str:
        place = self.column.first[kind]
        return f" ({place})" if place else ""

    def unwanted_kind(self, wanted: Sequence[str]) -> str | None:
        """Return the first kind of value that is none of these; rows that lack the column are another matter."""
        return next((kind for kind in self.column.first if kind not in (*wanted, "missing")), None)


def missing_part_error(columns: Mapping[str, Column], name: str, span: Span) -> Diagnostic | None:
    """Return the diagnostic where a program names what is in a column's objects (`extra_info.answer`), and some rows
    have no object there, or none of that name in any."""
    outer, _, inner = name.partition(".")
    above = ""
    while inner and f"{outer}.{inner}" not in columns and outer in columns:
        column = columns[outer]
        other = next((kind for kind in column.first if kind not in ABSENT | {"object"}), None)
        if other is not None:
            message = f"`{above}{outer}` holds {column.kind_with_row(other)}, which has no `{inner}`"
            return Diagnostic("E0760", message, span, f'write an object in every row: "{outer}": {{"{inner}": ...}}')
        if column.fields is None:
            return None
        columns, above = column.fields, f"{above}{outer}."
        outer, _, inner = inner.partition(".")
        if outer not in columns and f"{outer}.{inner}" not in columns:
            message = f"no row has a `{above}{outer}`"
            hint = did_you_mean(outer, columns) or f"`{above[:-1]}` has {', '.join(columns) or 'nothing in any row'}"
            return Diagnostic("E0204", message, span, hint)
    return None


def missing_column_error(use: ColumnUse) -> Diagnostic | None:
    """Return the diagnostic where some rows do not have the column."""
    if "missing" not in use.column.first:
        return None
    message = f"{use.column.first['missing']} has no column `{use.name}`, which other rows have"
    return Diagnostic("E0711", message, use.span, EVERY_ROW)


def ungiven_column_error(
    call: Node, missing: Sequence[str], source: str, columns: Collection[str]
) -> Diagnostic | None:
    """Return the diagnostic where a function asks for a column of answers to texts that the program has computed, which
    have none but these texts. source, columns: the data that the texts are made of, and what is in it."""
    if not missing:
        return None
    message = (
        f"`{call.attr('func')}` asks for a column '{missing[0]}', which answers to texts of the program do not have"
    )
    given = f"{missing[0]}={source}.{missing[0]}" if missing[0] in columns else f"{missing[0]}=..."
    written = call.span.covered_text.removesuffix(")")
    return Diagnostic("E0724", message, call.span, f"give it by name: `{written}, {given})`")


def key_error(use: ColumnUse) -> Diagnostic | None:
    """Return the diagnostic for a value that cannot be a key."""
    odd = next((kind for kind in NO_KEYS if kind in use.column.first), None)
    if odd is None:
        return None
    message = f"{use.as_written} is {WORDS[odd]} in {use.column.first[odd] or 'a row'}, and no key"
    hint = use.part_hint if odd == "object" else ""
    return Diagnostic("E0735", message, use.span, hint or "write a text or a whole number in every row")


def number_error(use: ColumnUse, span: Span, in_double: bool) -> Diagnostic | None:
    """Return the diagnostic for a value that is calculated with and is no number. in_double: the run calculates in 64
    bits."""
    odd = use.unwanted_kind(NUMBERS)
    if odd is None or (odd == "wide" and in_double):
        return None
    message = f"{use.as_written} holds {use.column.kind_with_row(odd)}, and one calculates with it"
    hint = use.part_hint if odd == "object" else _REMEDIES.get(odd, "")
    return Diagnostic("E0735", message, span if span.line else use.span, hint)


def prompt_error(use: ColumnUse, wanted: Sequence[str], span: Span) -> Diagnostic | None:
    """Return the diagnostic for a value that is read as tokens and is none of the kinds that can be."""
    odd = use.unwanted_kind(wanted)
    if odd is None or odd == "object" and "messages" in wanted and is_message(use.column.fields or {}):
        # A message stands for a list of one.
        return None
    needed = "a text or a list of messages" if "messages" in wanted else "a text"
    message = f"the column `{use.name}` holds {use.column.kind_with_row(odd)}, and {needed} is needed here"
    hint = _AS_TEXT if odd in ("whole", "real", "truth") else ""
    hint = "leave such rows out of the data" if odd == "null" else hint
    message_hint = 'a message is `{"role": "user", "content": "..."}`, and a row has one at least'
    hint = message_hint if odd == "nested" else hint
    hint = "write texts: bytes and dates are none" if odd == "other" else hint
    hint = use.part_hint if odd == "object" else hint
    return Diagnostic("E0732", message, span, hint)


def unread_prompt_error(source: str, shape: RowFormat, columns: Mapping[str, Column], span: Span) -> Diagnostic | None:
    """Return the diagnostic for pairs of answers that are texts without a `prompt`, beside a column that is called as
    prompts are: `question`. It would be left out, without a word."""
    name = next((name for name in PROMPT_NAMES if "text" in columns.get(name, Column({})).first), None)
    if name is None or "text" not in columns[shape.answer].first:
        return None
    message = f"`{shape.answer}` and `{shape.paired}` would be learned without what stands in `{name}`: a prompt is "
    message += "in a column `prompt`, or begins both"
    return Diagnostic("E0717", message, span, f"name it: `encode({source}.{name}, {source}.{shape.answer})`")


def braced_column_error(use: ColumnUse, node: Node) -> Diagnostic | None:
    """Return the diagnostic for a column that holds what cannot stand in the texts that a node makes: conversations
    are written out, but not into messages, nor between texts that are joined."""
    written_out = ("messages",) if node.op == "compose" and attribute_value(node, "role") is None else ()
    odd, text = use.unwanted_kind(("text", *NUMBERS, "odd", "wide", "large", *written_out)), node.span
    if odd is None:
        return None
    message = f"the column `{use.name}` holds {use.column.kind_with_row(odd)}, which cannot stand in a text"
    hint = use.part_hint if odd == "object" else NOT_IN_A_TEXT.get(odd, NOT_IN_A_TEXT[""])
    # A column that was named before has the place where that was.
    inside = text.line == use.span.line and text.column < use.span.column < text.end_column
    return Diagnostic("E0872", message, use.span if inside else text, hint)


def comparison_error(use: ColumnUse, side: str, other: str, expr: Apply) -> Diagnostic | None:
    """Return the diagnostic for a column that cannot be compared, or not with the other `side`."""
    null_place = use.column.first.get("null")
    if null_place is not None:
        message = f"{use.as_written} is null in {null_place or 'a row'}, which is equal to no value"
        hint = "write a value in every row, or compare in a function, which is given `None`"
        return Diagnostic("E0735", message, expr.span, hint)
    if side == "mixed":
        message = f"{use.as_written} holds {use.kinds_text}, and is compared: a text is equal to no number"
        hint = "write the whole column as texts, or the whole column as numbers"
        return Diagnostic("E0304", message, expr.span, hint)
    if side == "neither":
        message = f"{use.as_written} holds {use.kinds_text}, which is compared with nothing here"
        hint = "compare texts with texts and numbers with numbers; a function is given the rest as it is"
        hint = use.part_hint or hint
        return Diagnostic("E0304", message, expr.span, hint)
    return _mismatch(expr, use, side) if {side, other} == {"texts", "numbers"} else None


def _mismatch(expr: Apply, use: ColumnUse, side: str) -> Diagnostic:
    """Return the diagnostic for a column of numbers compared with a text, or of texts with a number."""
    constant = next((arg for arg in expr.args if isinstance(arg, Const)), None)
    if side == "numbers":
        message = f"{use.as_written} holds {use.kinds_text}, and is compared with a text: they are never equal"
        hint = f'write texts in the data, as "{use.name}": "4"'
        if constant is None:
            hint += '; or compare numbers, in a function: `python("rlgraph.rewards:exact_match")` does'
        elif str(constant.value).lstrip("-").replace(".", "", 1).isdecimal():
            hint += f"; or compare with a number: `{constant.value}`"
        return Diagnostic("E0304", message, expr.span, hint)
    message = f"{use.as_written} holds {use.kinds_text}, and is compared with a number: they are never equal"
    shown = (
        str(constant.value).lower()
        if constant is not None and isinstance(constant.value, bool)
        else constant and constant.value
    )
    hint = f'compare with a text: `"{shown}"`' if constant is not None else "compare with a column of texts"
    return Diagnostic("E0304", message, expr.span, f'{hint}; or write numbers in the data, as "{use.name}": 4')


def mixed_keys_error(state: str, uses: Sequence[ColumnUse]) -> Diagnostic | None:
    """Return the diagnostic where not all keys of a state are texts, or all numbers: 4 is another key than "4"."""
    kinds = [{"texts" if kind == "text" else "numbers" for kind in use.value_kinds} for use in uses]
    odd = next((use for use, use_kinds in zip(uses, kinds, strict=True) if len(use_kinds | kinds[0]) > 1), None)
    if odd is None:
        return None
    first = uses[0]
    message = f"{odd.as_written} holds {odd.kinds_text}, and the keys of `{state}` would be texts and numbers"
    if odd is not first and first.kinds_text != odd.kinds_text:
        message = f"{odd.as_written} holds {odd.kinds_text}, and {first.as_written}, by which `{state}` is kept too, "
        message += first.kinds_text
    hint = 'write all of them as texts, or all as numbers: 4 and "4" are two keys'
    return Diagnostic("E0304", message, odd.span, hint)
