"""Makes of a published program one for a small chat model: its text with other sources and sizes, and the rest as it
is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlgraph.api.starter.files import JUDGE_TEMPLATE
from rlgraph.api.starter.needs import Needs
from rlgraph.dsl import tree
from rlgraph.dsl.format import format_source
from rlgraph.dsl.parse import parse
from rlgraph.errors import Source, Span
from rlgraph.ir.graph import Program
from rlgraph.ops import NODES
from rlgraph.ops.shared_base_models import changed_models

LORA = "lora(rank=16, alpha=32)"
LEARNING_RATE = "2e-4"
"""That of adapters: weights themselves take a hundredth of it."""
LARGEST: Mapping[str, int] = {"batch": 8, "n": 8, "parts": 4, "max_tokens": 16, "max_turns": 2, "steps": 4}
"""The most of each option, so that a step takes seconds on two cores, and phases before the first one minutes."""
JUDGE = (
    'random("llama", hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,\n'
    "    num_key_value_heads=2, max_position_embeddings=512, tokenizer=bytes())"
)
"""A reward model that knows nothing, in the place of one that has to be trained first."""
JUDGE_CHAT = f'chat=chat(template="{JUDGE_TEMPLATE}")'
"""How it reads conversations, for which it has no template of its own."""
NOTE = "# Sized for a small chat model, with adapters, few and short answers: {}."


def starter_text(source: Source, program: Program, needs: Needs, model: str, original: str) -> tuple[str, str]:
    """Return the text of the program for a folder of its own, and the param that is the source of its models, empty
    where none is. model: that source, as an expression. original: where it is as it was, as a sentence."""
    edits = _Edits(source, program, needs, model)
    text = format_source(Source(source.path, edits.apply()))
    first, _, rest = text.partition("\n")
    note = NOTE.format(original)
    text = f"{first}\n{note}\n{rest}" if first.startswith("#") else f"{note}\n{text}"
    return text, next((name for name, source in edits.sources.items() if source == model), "")


class _Edits:
    """The changes to a text, by the place that each replaces."""

    def __init__(self, source: Source, program: Program, needs: Needs, model: str) -> None:
        self.source, self.file = source, parse(source)
        self.program, self.needs, self.model = program, needs, model
        self.params = {item.name: item.value for item in self._declarations("param")}
        self.changes: dict[tuple[int, int], tuple[int, str]] = {}
        self.sources: dict[str, str] = {}
        """The params that are sources of models, and what they became."""
        self.judges: dict[str, str] = {}
        """What each source of a model that only scores became, by its text."""
        for item in self._declarations("model"):
            self._model(item)
        for word, file in (("data", "{}.jsonl"), ("func", "rewards.py:{}"), ("env", "envs.py:{}")):
            for item in self._declarations(word):
                self._outside(item, word, file)
        for phase in (item for item in self.file.declarations if isinstance(item, tree.Phase)):
            for option in phase.options:
                self._lower(option)
        for statement in self._statements():
            self._statement(statement)

    def apply(self) -> str:
        """Return the text with all changes."""
        text = self.source.text
        for (start, _), (end, new) in sorted(self.changes.items(), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _declarations(self, kind: str) -> list[tree.Declaration]:
        return [item for item in self.file.declarations if isinstance(item, tree.Declaration) and item.kind == kind]

    def _statements(self) -> Iterator[tree.Stmt]:
        for item in self.file.declarations:
            if isinstance(item, tree.Phase | tree.Def):
                yield from tree.all_statements(item.body)

    def _replace(self, span: Span, new: str) -> None:
        start, end = self._offset(span.line, span.column), self._offset(span.end_line, span.end_column)
        self.changes[start, end] = end, new
        # A comment beside it that says the same number says the new one.
        for comment in self.file.comments:
            if comment.line == span.line and not comment.alone:
                text = re.sub(rf"(?<![\w.]){re.escape(span.covered_text)}(?![\w.])", lambda _: new, comment.text)
                begin = self._offset(comment.line, comment.column)
                self.changes[begin, begin] = begin + len(comment.text), text

    def _offset(self, line: int, column: int) -> int:
        return sum(map(len, self.source.text.splitlines(keepends=True)[: line - 1])) + column - 1

    def _judge(self, source: str) -> str:
        """Return the source of a judge in the place of another: those of several are not the same."""
        seed = f", seed={len(self.judges)}" if self.judges else ""
        return self.judges.setdefault(source, f"{JUDGE.removesuffix(')')}{seed})")

    def _model(self, item: tree.Declaration) -> None:
        """Give a model that is no copy another source, a judge a template, and adapters to what is trained."""
        declared = next((model for model in self.program.models if model.name == item.name), None)
        if declared is None or declared.copy_of:
            return
        call = next(
            part for part in _parts(item.value) if isinstance(part, tree.Call) and _called(part) == declared.kind
        )
        judges = item.name in self.needs.judges
        place = call.args[0]
        wanted = self._judge(place.span.covered_text) if judges else self.model
        if isinstance(place, tree.Name) and self.sources.setdefault(place.id, wanted) == wanted:
            place = self.params[place.id]
        self._replace(place.span, wanted)
        trained = item.name in changed_models(self.program)
        added = ", ".join(
            text
            for text, wants in ((JUDGE_CHAT, judges), (f"lora={LORA}", trained))
            if wants and all(option.name != text.partition("=")[0] for option in call.options)
        )
        if added:
            end = self._offset(call.span.end_line, call.span.end_column)
            self.changes[end - 1, end - 1] = end - 1, f", {added}"

    def _outside(self, item: tree.Declaration, word: str, file: str) -> None:
        """Take the data, a function or an environment from a file of the folder; options stay."""
        assert isinstance(item.value, tree.Call)
        call, name = item.value, item.name
        if word == "env" and isinstance(call.args[0], tree.String):
            name = call.args[0].value.rpartition(":")[2]
        if word == "data":
            self._replace(call.func.span, "jsonl")
        self._replace(call.args[0].span, f'"{file.format(name)}"')
        for option in call.options:
            self._lower(option)

    def _statement(self, statement: tree.Stmt) -> None:
        """Make the sizes of a statement smaller."""
        if isinstance(statement, tree.Train):
            for option in statement.options:
                number = self._number(option) if option.name == "lr" else None
                if number is not None:
                    self._replace(number.span, LEARNING_RATE)
        if isinstance(statement, tree.Collect) and statement.args and isinstance(statement.args[0], tree.Number):
            count = statement.args[0]
            if count.value > LARGEST["batch"]:
                self._replace(count.span, str(LARGEST["batch"]))
        for option in statement.options if isinstance(statement, tree.Minibatch | tree.Collect) else ():
            self._lower(option)
        for part in _parts(statement):
            if isinstance(part, tree.Call) and _called(part) in NODES:
                for option in part.options:
                    self._lower(option)

    def _lower(self, option: tree.Option) -> None:
        """Lower an option to the most that a step of seconds has, or the param that it names."""
        most, number = LARGEST.get(option.name), self._number(option)
        if most is None or number is None or number.value <= most:
            return
        self._replace(number.span, str(most))
        if isinstance(option.value, tree.Name):
            self._lower_with(option.value.id, most / number.value)

    def _number(self, option: tree.Option) -> tree.Number | None:
        """Return the number that is written for an option, or for the param that it names."""
        value = option.value
        number = self.params.get(value.id) if isinstance(value, tree.Name) else value
        return number if isinstance(number, tree.Number) else None

    def _lower_with(self, name: str, factor: float) -> None:
        """Lower the whole numbers that are added to a param, or subtracted from it, as it was lowered: they are of its
        unit."""
        for part in (part for statement in self._statements() for part in _parts(statement)):
            if not isinstance(part, tree.Binary) or part.op not in "+-":
                continue
            sides = [side.id for side in (part.left, part.right) if isinstance(side, tree.Name)]
            for other in sides if name in sides else ():
                number = self.params.get(other)
                if other != name and isinstance(number, tree.Number) and isinstance(number.value, int):
                    self._replace(number.span, str(max(1, round(number.value * factor))))


def _called(call: tree.Call) -> str:
    """Return the name of what is called, of a model's too: `generate` of `actor.generate(...)`."""
    if isinstance(call.func, tree.Attribute):
        return call.func.name
    return call.func.id if isinstance(call.func, tree.Name) else ""


def _parts(item: Any) -> Iterator[Any]:
    """Yield a piece of the tree and all of its parts, without the bodies of loops, which are statements themselves."""
    if isinstance(item, tuple):
        for part in item:
            yield from _parts(part)
    elif is_dataclass(item) and not isinstance(item, Span):
        yield item
        for part in fields(item):
            if part.name != "body":
                yield from _parts(getattr(item, part.name))
