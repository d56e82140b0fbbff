"""This module has a function for each operation, which does its work in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptRows, KeptTokens, PlacedNumbers
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.vocabulary_sums import OtherModel
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.lowering.lower import LoweredNode, lower
from rlgraph.backends.rows import Rows, TableData, pick_entries, row_label
from rlgraph.backends.step import Step
from rlgraph.backends.worker.answer_ends import with_ends_of_answers
from rlgraph.backends.worker.buffers import run_buffer_push, run_buffer_recall, run_buffer_sample
from rlgraph.backends.worker.columns import column_tensor, finite_numbers, function_columns, tensor_inputs
from rlgraph.backends.worker.compared import compare_with_sampler, weights_begin_step
from rlgraph.backends.worker.compose import run_compose_texts, run_join_texts
from rlgraph.backends.worker.draws import run_uniform
from rlgraph.backends.worker.episode_tables import run_branch, run_player
from rlgraph.backends.worker.episodes import run_interact
from rlgraph.backends.worker.expected_lengths import run_expect_lengths, run_learn_lengths
from rlgraph.backends.worker.pairing import run_pairs, run_roll
from rlgraph.backends.worker.pieces import join_row_pieces
from rlgraph.backends.worker.prefixes import cut_rows
from rlgraph.backends.worker.row_choice import group_starts, row_namer, run_keep, run_pick
from rlgraph.backends.worker.sampling import rows_of_inner_axes, run_generate, table_type
from rlgraph.backends.worker.sampling_inputs import check_read_from_texts, prompt_of, rows_to_encode, table_column
from rlgraph.backends.worker.session import Session, SessionModel, engine_run_error, row_too_long_error
from rlgraph.backends.worker.step_state import run_state_assign, run_state_lookup
from rlgraph.conversations import Example, template_options_of, tools_of
from rlgraph.data import Cursor
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Apply, Node
from rlgraph.ir.types import SAID, Table, axis_of
from rlgraph.ir.types import Tensor as TensorType
from rlgraph.ops import NODES, attribute_value
from rlgraph.ops.nodes import kept_probabilities, numbers_beside, pairs_beside, table_of

Work = Callable[[Node, Frame, Session], NodeOutput]


def run_read(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Read the next rows of a data source."""
    kind = table_type(node)
    name = kind.axis.name
    rows, ids, cursor = session.readers[name].read_batch(frame.values[node.inputs[0]])
    row_ids = tuple((name, position.epoch, position.row) for position in ids)
    session.notes.add_note(frame.step, "read", node.name, row_ids)
    made = TableData(tuple(rows))
    assert isinstance(cursor, Cursor)
    return NodeOutput(
        {node.outputs[0].name: made, node.outputs[1].name: cursor}, [Rows(kind.axis, len(rows), None, row_ids)]
    )


def run_encode(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Encode texts and conversations with the tokenizer of the first model that is declared."""
    kind = table_type(node)
    rows = frame.rows[kind.axis.key]
    owner = next(iter(session.models.values()))
    data, examples = rows_to_encode(node, frame, rows)
    sequences = _sequences_of(node, owner, examples, rows)
    table = TableData(data, examples, sequences, {}, owner.model.name)
    return NodeOutput({node.outputs[0].name: table}, rows_of_inner_axes(kind, table))


def _sequences_of(node: Node, model: SessionModel, examples: Sequence[Any], rows: Rows | None) -> Sequences:
    """Return examples in a model's tokens."""
    made = []
    for place, shown in enumerate(examples):
        try:
            made.append(model.engine.codec.encode_example(shown))
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(node, f"{rows.row_name(place) if rows else 'a row'} cannot be used", error) from None
    return Sequences.from_lists([ids for ids, _ in made], [learned for _, learned in made])


def run_length(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Count the tokens of texts with the tokenizer of the first model that is declared."""
    kind = frame.types[node.inputs[0]]
    texts, axis = frame.values[node.inputs[0]], axis_of(kind)
    assert axis
    codec = next(iter(session.models.values())).engine.codec
    wrong = next((place for place, text in enumerate(texts) if not isinstance(text, (str, list))), None)
    if wrong is not None:
        who, what = frame.rows[axis.key].row_name(wrong), f"{texts[wrong]!r:.60}"
        raise RunError(Diagnostic("E0732", f"{who} has no text whose tokens could be counted: {what}", node.span))
    try:
        counts = codec.prompt_lengths(texts)
    except (EngineError, TypeError, KeyError) as error:
        raise engine_run_error(node, "the tokens of a column cannot be counted", error) from None
    return NodeOutput({node.outputs[0].name: torch.tensor(counts, dtype=torch.long)})


def run_column(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a column of a table."""
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table)
    table = frame.values[node.inputs[0]]
    if node.attr("name") == "age" and kind.sampled and "age" not in table.columns:
        # Rows of a batch that goes on in later steps may be of newer weights than the step that began it.
        values = (session.versions.version_at(table.owner, frame.step) - table.columns["version"]).clamp(min=0)
    else:
        values = table_column(str(node.attr("name")), table, session, frame.rows[kind.axis.key], node)
    return NodeOutput({node.outputs[0].name: values})


def engine_and_sequences(node: Node, frame: Frame, session: Session, place: int = 0) -> tuple[Any, Sequences]:
    """Return a model's engine and a table's tokens, in that model's own tokens, all of which it can read. place: of the
    model among the inputs, behind which its table is."""
    state, sequences, codec = _in_tokens_of_model(node, frame, session, place)
    longest, kind = state.max_row_tokens, frame.types[node.inputs[place + 1]]
    assert isinstance(kind, Table)
    if _of_whole_rows(node):
        prompts, pieces = frame.values[node.inputs[place + 1]].prompts, kind.start == "row"
        sequences = with_ends_of_answers(sequences, prompts, codec, pieces=pieces, longest=longest)
    if longest is not None and len(sequences) and int(sequences.lengths.max()) > longest:
        row = int(sequences.lengths.argmax())
        who, tokens = frame.rows[kind.axis.key].row_name(row), int(sequences.lengths[row])
        raise row_too_long_error(node, f"{who} has {count_phrase(tokens, 'token')}, and is", tokens, state, longest)
    return state.engine, sequences


def _of_whole_rows(node: Node) -> bool:
    """Return whether a model gives a number for each row, and not one for each of its tokens."""
    axis = axis_of(node.outputs[0].type)
    return axis is None or not axis.inner


def _in_tokens_of_model(
    node: Node, frame: Frame, session: Session, place: int
) -> tuple[SessionModel, Sequences, Codec]:
    """Return a model and a table's tokens, encoded again where another tokenizer made them, with what encoded them."""
    state = session.models[frame.values[node.inputs[place]]]
    table: TableData = frame.values[node.inputs[place + 1]]
    assert table.sequences is not None
    owner = session.models[table.owner].engine.codec
    codec = state.engine.codec
    if codec is owner or codec.tokenizer.get_vocab() == owner.tokenizer.get_vocab():
        if table.sequences.routes is not None and state.model.name != table.owner:
            # What routers of another model chose is nothing to this one's.
            return state, replace(table.sequences, routes=None), owner
        return state, table.sequences, owner
    if not _of_whole_rows(node):
        # A result for each token would be of other tokens.
        raise RunError(
            Diagnostic(
                "E0734",
                f"`{state.model.name}` and `{table.owner}` split texts into other tokens",
                node.span,
                "only `score` can read rows of a model with another tokenizer",
            )
        )
    kind = frame.types[node.inputs[place + 1]]
    assert isinstance(kind, Table)
    if kind.start == "text" and any(isinstance(prompt, Example) for prompt in table.prompts):
        return state, _sequences_of(node, state, table.prompts, None), codec
    if kind.start != "text":
        check_read_from_texts(node, table, kind, frame.rows[kind.axis.key], owner, state.model.name)
    prompts = []
    for number, (prompt, row) in enumerate(zip(table.prompts, table.data, strict=True)):
        try:
            prompts.append(codec.encode_prompt(prompt, tools_of(row), template_options_of(row)))
        except (EngineError, TypeError, KeyError) as error:
            who = frame.rows[kind.axis.key].row_name(number)
            raise engine_run_error(node, f"`{state.model.name}` cannot read {who}", error) from None
    responses = [codec.encode_response(owner.decode(row)) for row in table.sequences.scored_tokens_by_row()]
    return state, Sequences.from_pairs(prompts, responses), codec


def model_call_options(node: Node, frame: Frame, session: Session) -> dict[str, Any]:
    """Return what a model is given beside its rows: the attributes of a node, and other models with their rows."""
    options = {attribute.name: attribute_value(node, attribute.name) for attribute in NODES[node.op].attributes}
    if not NODES[node.op].joint:
        return options
    models = range(2, 2 + len(pairs_beside(node)), 2)
    others = [OtherModel(*engine_and_sequences(node, frame, session, at)) for at in models]
    for name in kept_probabilities(node):
        table: TableData = frame.values[node.inputs[1]]
        assert table.sequences is not None
        others.append(OtherModel(None, KeptRows(frame.values[name], table.sequences.scored_counts())))
    others += [OtherModel(None, _numbers_of_rows(name, node, frame, session)) for name in numbers_beside(node)]
    del options["kept"], options["numbers"]
    return {**options, "others": tuple(others)}


def _numbers_of_rows(name: str, node: Node, frame: Frame, session: Session) -> KeptRows:
    """Return a number of rows, of their parents or of all, for each scored token of the rows that a node reads."""
    kind, axis, value = frame.types[table_of(node)], axis_of(frame.types[name]), frame.values[name]
    assert isinstance(kind, Table) and kind.token
    if isinstance(value, list):
        value = column_tensor(value, name, row_namer(frame, name), node.span, session.dtype)
    tokens, value = kind.token.key, torch.as_tensor(value, dtype=session.dtype)
    value = value.expand(frame.row_count(tokens)) if axis is None else value[frame.ancestor_rows(tokens, axis.key)]
    return KeptRows(PlacedNumbers(value), frame.values[table_of(node)].sequences.scored_counts())


def run_scoring(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Do `logprobs`, `entropy`, `distribution`, `values` or `score`: with a gradient exactly inside `train`."""
    engine, sequences = engine_and_sequences(node, frame, session)
    try:
        value = getattr(engine, node.op)(sequences, **model_call_options(node, frame, session))
    except EngineError as error:
        raise engine_run_error(node, f"`{node.op}` failed", error) from None
    if isinstance(value, KeptTokens):
        whole, kept = (output.name for output in node.outputs)
        tokens = value.to(session.dtype)
        return NodeOutput({whole: tokens.shares(), kept: tokens})
    value = value.to("cpu", session.dtype)
    compared = compare_with_sampler(node, frame, session, value) if weights_begin_step(node, session) else ()
    return NodeOutput({node.outputs[0].name: value}, mismatches=compared)


def run_call(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Call a Python function of the user's, with the signature that reward functions have elsewhere."""
    table: TableData = frame.values[node.inputs[0]]
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table) and table.sequences is not None
    rows = frame.rows[kind.axis.key]
    codec = session.models[table.owner].engine.codec
    ids = table.sequences.scored_tokens_by_row()
    function, own_columns = session.functions[node.attr("func")], node.attr("names")
    takes: Callable[[str], bool] = lambda name: name not in own_columns and function.accepts_column(name)  # noqa: E731
    columns: dict[str, Any] = function_columns(table.data, rows, node.span, takes)
    for name, source in zip(node.attr("names"), node.inputs[1:], strict=True):
        value, source_type = frame.values[source], frame.types[source]
        if source_type.axis.key != kind.axis.key:  # type: ignore[union-attr]
            value = pick_entries(value, frame.ancestor_rows(kind.axis.key, source_type.axis.key))  # type: ignore[union-attr]
        columns[name] = value.tolist() if isinstance(value, Tensor) else value
    shown = [row_label(row) for row in rows.known_ids]
    func = node.attr("func")
    said: Sequence[Mapping[str, Any]] = table.columns.get(SAID, [{}] * len(ids))
    if SAID in table.columns and function.has_parameter("calls"):
        columns.setdefault("calls", [episode["calls"] for episode in said])
    answers = [episode.get("messages") or codec.decode(row) for episode, row in zip(said, ids, strict=True)]
    groups = None if kind.axis.parent is None else frame.ancestor_rows(kind.axis.key, kind.axis.root_axis.key).tolist()
    asked = [prompt_of(prompt) for prompt in table.prompts]
    judged = function.judge(asked, answers, ids, columns, shown, groups)
    session.failures.add_first(str(func), judged.failures)
    values: dict[str, Any] = {}
    for output, column in zip(node.outputs, [*judged.columns, judged.states], strict=False):
        assert isinstance(output.type, TensorType)
        if output.type.dtype == "float":
            values[output.name] = finite_numbers(
                column, lambda place: f"what `{func}` gives for {rows.row_name(place)}", node.span, session.dtype
            )
        else:
            values[output.name] = torch.tensor(column, dtype=torch.long) if output.type.dtype == "int" else column
    return NodeOutput(values)


@cache
def _lowered(node: Node) -> LoweredNode:
    return lower(node)


def run_tensor_math(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Compute tensor mathematics."""
    raw = {name: frame.values[name] for name in node.inputs}
    values = tensor_inputs(node, raw, {name: row_namer(frame, name) for name in node.inputs}, session.dtype)
    try:
        results = dict(_lowered(replace(node, unit=None))(values, _AxisRows(frame, session.dtype)))
    except OverflowError as error:
        message = f"`{node.name}` comes to {error}"
        hint = "calculate with real numbers: `float(x)` of a column"
        raise RunError(Diagnostic("E0731", message, node.span, hint)) from None
    except RuntimeError as error:
        if "ZeroDivisionError" not in str(error):
            raise
        message = f"`{node.name}` divides a whole number by 0"
        raise RunError(Diagnostic("E0731", message, node.span, "`max(x, 1)` is never 0")) from None
    exprs = {let.name: let.expr for let in node.body}
    for value in node.outputs:
        expr = exprs[value.name]
        if isinstance(expr, Apply) and expr.type.dtype == "row" and expr.type.axis and expr.args[0].type.axis:
            # A chosen row is given by its place in its group, which is the same in every slice and block.
            starts = torch.from_numpy(group_starts(frame, expr.args[0].type.axis, expr.type.axis))
            results[value.name] = torch.where(results[value.name] < 0, -1, results[value.name] - starts)
    return NodeOutput(results)


@dataclass(frozen=True)
class _AxisRows:
    """The rows of a frame, for a lowered node."""

    frame: Frame
    dtype: torch.dtype

    def ancestor_rows(self, child: str, ancestor: str) -> Tensor:
        return torch.from_numpy(self.frame.ancestor_rows(child, ancestor))

    def row_count(self, axis: str) -> int:
        return self.frame.row_count(axis)


def run_size(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the number of rows of an axis."""
    return NodeOutput({node.outputs[0].name: frame.row_count(node.attr("axis"))})


def run_target_update(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Give a model another's weights, or move it towards them."""
    target, source = (frame.values[name] for name in node.inputs)
    copy_or_blend_weights(node, frame.step, session, target, source)
    return NodeOutput({node.outputs[0].name: target})


def copy_or_blend_weights(node: Node, step: Step, session: Session, target: str, source: str) -> None:
    """Give a model another's weights, or move it towards them."""
    state, weights, ema = session.models[target], session.models[source].engine.state(), node.attr("ema")
    session.prepare_weight_change(target, step)
    try:
        if ema is None:
            state.engine.load_weights(weights)
        else:
            state.engine.blend(weights, ema)
    except EngineError as error:
        raise engine_run_error(node, "the weights do not fit", error) from None


def run_report(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the named metrics."""
    named = zip(node.attr("names"), node.inputs, strict=True)
    return NodeOutput(metrics={name: float(frame.values[source]) for name, source in named})


WORK: dict[str, Work] = {
    "read": run_read,
    "encode": run_encode,
    "row": join_row_pieces,
    "prefix": cut_rows,
    "column": run_column,
    "compose": run_compose_texts,
    "joined": run_join_texts,
    "length": run_length,
    "generate": run_generate,
    "interact": run_interact,
    "player": run_player,
    "branch": run_branch,
    "logprobs": run_scoring,
    "entropy": run_scoring,
    "distribution": run_scoring,
    "likeliest": run_scoring,
    "values": run_scoring,
    "score": run_scoring,
    "call": run_call,
    "tensor": run_tensor_math,
    "size": run_size,
    "expect": run_expect_lengths,
    "learn": run_learn_lengths,
    "keep": run_keep,
    "resample": run_keep,
    "pick": run_pick,
    "pairs": run_pairs,
    "roll": run_roll,
    "uniform": run_uniform,
    "lookup": run_state_lookup,
    "assign": run_state_assign,
    "push": run_buffer_push,
    "sample": run_buffer_sample,
    "recall": run_buffer_recall,
    "update": run_target_update,
    "report": run_report,
}


def run_node(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Do the work of one node on the rows of a frame."""
    return WORK[node.op](node, frame, session)
