"""Puts pieces of rows behind one another: tokens of tables, texts and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.turns import without_end_of_turn
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows, TableData
from rlgraph.backends.worker.piece_columns import LearnedPiece, columns_of_pieces, finished_rows
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_type
from rlgraph.backends.worker.sampling_inputs import prompt_of
from rlgraph.backends.worker.session import Session, engine_run_error
from rlgraph.conversations import Content, Message, OddRow, parse_content, template_options_of, tools_of
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table, axis_of
from rlgraph.ops import attribute_value


@dataclass
class _GrowingRow:
    """A row while its pieces are put behind one another."""

    prompt: Any = None
    """What it begins with, a text or messages."""
    tokens: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    """For each token whether its piece carries loss."""
    sampled: list[bool] = field(default_factory=list)
    """For each token whether it carries loss in the table that it is from."""
    waiting: Any = None
    """Texts or messages that have come and are not tokens yet."""
    replies: list[list[Message]] = field(default_factory=list)
    """Messages that stand behind tokens."""

    def add(self, ids: Sequence[int], sampled: Sequence[bool], learned: Sequence[bool]) -> None:
        """Add tokens behind the others."""
        self.tokens += ids
        self.sampled += sampled
        self.learned += learned


def join_row_pieces(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a table whose rows are the pieces of `row(...)` behind one another. Tokens of tables stay what they are,
    texts and messages are read once. Raises RunError for pieces that do not go together."""
    kind, main_kind = table_type(node), frame.types[node.inputs[0]]
    main: TableData = frame.values[node.inputs[0]]
    assert isinstance(main_kind, Table)
    rows, codec = frame.rows[kind.axis.key], session.models[main.owner].engine.codec
    main_places = frame.ancestor_rows(kind.axis.key, main_kind.axis.key)
    data = [main.data[place] for place in main_places.tolist()]
    growing = [_GrowingRow() for _ in range(rows.size)]
    tables, loss = _tables(node, frame), attribute_value(node, "loss")
    learned_tables = {"all": tables, "last": tables[-1:], "seen": []}[loss]
    names, roles = iter(node.inputs[1:]), attribute_value(node, "roles")
    learned_pieces = []
    for number, literal in enumerate(node.attr("pieces")):
        name = "" if literal else next(names)
        if name and isinstance(frame.types[name], Table):
            for row, given in zip(growing, data, strict=True):
                _write_waiting(node, rows, growing, row, given, codec)
            learns = number in learned_tables
            piece = _add_tokens(node, frame, session, name, growing, main, learns)
            learned_pieces += [piece] if learns else []
        else:
            role = roles[number] if roles else ""
            said = [{"role": role, "content": literal}] if role else literal
            _add_content(node, frame, name, said, growing, rows, axis_key=kind.axis.key)
    for row, given in zip(growing, data, strict=True):
        _write_waiting(node, rows, growing, row, given, codec)
    flags = [_seen(row) if loss == "seen" else row.learned for row in growing]
    sequences = Sequences.from_lists([row.tokens for row in growing], flags)
    ends = bool(learned_pieces) and tables[-1] == len(node.attr("pieces")) - 1
    prompts = tuple(row.prompt for row in growing)
    if kind.token == main_kind.token:
        columns = main.columns if ends else {**main.columns, **finished_rows(kind, rows.size)}
        made = replace(main, prompts=prompts, sequences=sequences, columns=columns)
        return NodeOutput({node.outputs[0].name: made})
    columns = columns_of_pieces(kind, learned_pieces, main, main_kind, main_places, ends=ends)
    made = TableData(tuple(data), prompts, sequences, columns, main.owner)
    return NodeOutput({node.outputs[0].name: made}, rows_of_inner_axes(kind, made))


def _tables(node: Node, frame: Frame) -> list[int]:
    """Return the numbers of the pieces that are tables."""
    names = iter(node.inputs[1:])
    return [
        number
        for number, literal in enumerate(node.attr("pieces"))
        if not literal and isinstance(frame.types[next(names)], Table)
    ]


def _add_tokens(
    node: Node, frame: Frame, session: Session, name: str, growing: list[_GrowingRow], main: TableData, learns: bool
) -> LearnedPiece:
    """Add the tokens of a table's rows: of the first piece all of them, of others those from the first with loss on."""
    table, kind = frame.values[name], frame.types[name]
    assert isinstance(kind, Table) and table.sequences is not None
    _check_tokenizer(node, session, main.owner, table.owner)
    places = frame.ancestor_rows(table_type(node).axis.key, kind.axis.key)
    tokens, flags, starts = table.sequences.rows(), table.sequences.scored_by_row(), table.sequences.first_scored()
    for row, place in zip(growing, places.tolist(), strict=True):
        start = starts[place] if row.tokens else 0
        if not row.tokens:
            row.prompt = table.prompts[place]
        kept = flags[place][start:]
        row.add(tokens[place][start:], kept, kept if learns else [False] * len(kept))
    return LearnedPiece(table, kind, places)


def _add_content(
    node: Node, frame: Frame, name: str, literal: Content, growing: list[_GrowingRow], rows: Rows, axis_key: str
) -> None:
    """Add a text or messages for all rows, or a text or messages of each, which are read when the next tokens come."""
    if literal:
        entries: Sequence[Any] = [literal] * rows.size
    else:
        axis = axis_of(frame.types[name])
        assert axis
        value = frame.values[name]
        entries = [value[place] for place in frame.ancestor_rows(axis_key, axis.key).tolist()]
    for place, (row, entry) in enumerate(zip(growing, entries, strict=True)):
        before = row.waiting
        readable = isinstance(entry, str | list)
        if not readable or before is not None and isinstance(before, str) != isinstance(entry, str):
            what = "of another kind" if readable else "no text and no list of messages"
            message = f"`{name or literal}` of {rows.row_name(place)} is {what}: {entry!r:.60}"
            hint = "pieces that stand next to one another are all texts, or all lists of messages"
            raise RunError(Diagnostic("E0892", message, node.span, hint))
        row.waiting = entry if before is None else before + entry


def _write_waiting(
    node: Node, rows: Rows, growing: Sequence[_GrowingRow], row: _GrowingRow, given: Any, codec: Codec
) -> None:
    """Make tokens of the texts or messages that wait: as a prompt where nothing stands before them, else as what goes
    on behind tokens. given: the row of the data."""
    if row.waiting is None:
        return
    content, row.waiting = row.waiting, None

    def who() -> str:
        return rows.row_name(next(place for place, other in enumerate(growing) if other is row))

    try:
        asked = parse_content(content, "prompt")
        if not row.tokens:
            row.prompt = content
            ids = codec.encode_prompt(asked, tools_of(given), template_options_of(given))
        elif isinstance(asked, str):
            ids = codec.encode_text(asked)
        else:
            begun = prompt_of(row.prompt)
            if isinstance(begun, str):
                message = f"messages stand behind tokens in {who()}, and it begins with a text, not with messages"
                hint = "write a text there, or let the row begin with messages: `user(TEXT)`"
                raise RunError(Diagnostic("E0892", message, node.span, hint))
            row.replies.append(list(asked))
            first = parse_content(begun, "prompt")
            assert not isinstance(first, str)
            between = codec.encode_between_answers(first, row.replies, tools_of(given), template_options_of(given))
            ids = without_end_of_turn(between, row.tokens)
    except OddRow as error:
        raise RunError(Diagnostic("E0892", f"the pieces of {who()} cannot be used: {error}", node.span)) from None
    except (EngineError, TypeError, KeyError) as error:
        raise engine_run_error(node, f"the pieces of {who()} cannot be used", error) from None
    if not row.tokens and not ids:
        message = f"the pieces of {who()} have no token: nothing stands before those of the row"
        raise RunError(Diagnostic("E0892", message, node.span, "put a text before them that is in every row"))
    row.add(ids, [False] * len(ids), [False] * len(ids))


def _seen(row: _GrowingRow) -> list[bool]:
    """Return which tokens no model has sampled, of those behind the first that one has."""
    first = row.sampled.index(True) if True in row.sampled else len(row.sampled)
    return [place > first and not sampled for place, sampled in enumerate(row.sampled)]


def _check_tokenizer(node: Node, session: Session, owner: str, other: str) -> None:
    """Raise RunError where the tokens of two pieces were made by different tokenizers."""
    mine, theirs = (session.models[name].engine.codec for name in (owner, other))
    if mine is theirs or mine.tokenizer.get_vocab() == theirs.tokenizer.get_vocab():
        return
    message = f"`{owner}` and `{other}` split texts into other tokens, and a row has those of one tokenizer"
    hint = "put the text of one of them there: `row(rollout, other.text)`"
    raise RunError(Diagnostic("E0310", message, node.span, hint))
