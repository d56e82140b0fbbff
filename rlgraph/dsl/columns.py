"""Compares what columns of the data hold with how a program uses them.

The checker asks with the rows of the data that it has seen, and a run asks once more before its first step, with all
rows. A use is found in the graph: for each table it is known from which data its rows are, whatever filters, loops and
buffers they went through, and for each value from which column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rlgraph.columns import column_at
from rlgraph.conversations import RowFormat, format_of_columns
from rlgraph.dsl.data_uses import FunctionUse, GivenColumn, Known, LoadedFunction, Origin, PromptUse
from rlgraph.dsl.misuses import (
    ColumnUse,
    braced_column_error,
    key_error,
    missing_column_error,
    missing_part_error,
    mixed_keys_error,
    prompt_error,
    ungiven_column_error,
    unread_prompt_error,
)
from rlgraph.dsl.value_checks import ValueChecks
from rlgraph.errors import Diagnostic, Span, quoted_list
from rlgraph.ir.graph import Graph, Node, Program, Ref
from rlgraph.ir.types import COMPUTED_PROMPTS, StateHandle, Table, Tensor, Type
from rlgraph.ops import NODES, attribute_value
from rlgraph.ops.nodes import prompt_column_of, rows_per_input, sampling_node

TURNS = "turns"
"""A column that only tables of episodes have."""


def column_misuses(
    program: Program, known: Known, functions: Mapping[str, LoadedFunction] | None = None
) -> list[Diagnostic]:
    """Return a diagnostic for each use that does not fit what its column holds. `functions`: those that are loaded,
    which know what they take."""
    walk = _UseWalk(program, known, functions or {})
    walk.walk_phases()
    walk.check_keys()
    return list({(d.code, d.message, str(d.span)): d for d in walk.diagnostics}.values())


def hidden_column_warnings(program: Program, known: Known) -> list[Diagnostic]:
    """Return a warning for each column of episodes that a program uses, and that has the name of one of the data."""
    walk = _UseWalk(program, known, {})
    walk.walk_phases()
    return list({d.hint: d for d in reversed(walk.warnings)}.values())


def find_prompt_uses(program: Program, known: Known) -> list[PromptUse]:
    """Return where a model answers prompts of the data, or reads them, in the order of the program."""
    walk = _UseWalk(program, known, {})
    walk.walk_phases()
    return walk.prompt_uses


def find_written_uses(program: Program, known: Known) -> list[PromptUse]:
    """Return where a model answers texts, or messages with texts, that are those of a column of the data, in the order
    of the program."""
    walk = _UseWalk(program, known, {})
    walk.walk_phases()
    return walk.written_uses


def find_episode_uses(program: Program, known: Known) -> list[PromptUse]:
    """Return where a model plays episodes on rows of the data, in the order of the program."""
    walk = _UseWalk(program, known, {})
    walk.walk_phases()
    return walk.episode_uses


def find_function_uses(program: Program, known: Known) -> list[FunctionUse]:
    """Return where functions are called on answers to prompts of the data, in the order of the program."""
    walk = _UseWalk(program, known, {})
    walk.walk_phases()
    return walk.function_uses


@dataclass(slots=True)
class _UseWalk(ValueChecks):
    """Walks graphs in their order, and tracks from which data the rows of each table are and from which column each
    value is."""

    contents: Known
    functions: Mapping[str, LoadedFunction]
    types: Mapping[str, Type] = field(default_factory=dict)
    """The types of the values of the present phase."""
    tables: dict[str, Origin] = field(default_factory=dict)
    """From which data the rows of each table are."""
    buffers: dict[str, Origin] = field(default_factory=dict)
    """From which data the rows of each buffer are."""
    keys: dict[str, list[ColumnUse]] = field(default_factory=dict)
    """The columns that are keys of each keyed state."""
    encoded: dict[str, tuple[str, RowFormat, bool, bool]] = field(default_factory=dict)
    """For each table that is made of texts or conversations the data source, the columns that it is made of, whether
    it is made of whole rows, and whether only last turns carry loss."""
    chosen: set[str] = field(default_factory=set)
    """Tables and values some of whose rows were left out."""
    prompt_uses: list[PromptUse] = field(default_factory=list)
    written_uses: list[PromptUse] = field(default_factory=list)
    episode_uses: list[PromptUse] = field(default_factory=list)
    function_uses: list[FunctionUse] = field(default_factory=list)
    written: dict[str, tuple[ColumnUse, bool]] = field(default_factory=dict)
    """For each text that is that of a column alone the column, and whether it is in a message."""
    makers: dict[str, tuple[Node, int]] = field(default_factory=dict)
    """For each value of the present phase the node that makes it, and the index of the output."""
    warnings: list[Diagnostic] = field(default_factory=list)
    """What a run goes on with."""

    def walk_phases(self) -> None:
        """Walk all phases."""
        for phase in self.program.phases:
            self.types = phase.graph.value_types()
            self.makers = {v.name: (node, at) for node in phase.graph.walk() for at, v in enumerate(node.outputs)}
            self.walk_graph(phase.graph)

    def walk_graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            for region in node.regions:
                self.walk_graph(region)
                exported = region.outputs[len(region.inputs) :]
                for name, value in zip(exported, node.outputs[len(region.inputs) :], strict=False):
                    self._copy_origin(name, value.name)
            self._node(node)

    def _copy_origin(self, old: str, new: str) -> None:
        if old in self.tables:
            self.tables[new] = self.tables[old]
        if old in self.columns:
            self.columns[new] = self.columns[old]
        if old in self.encoded:
            self.encoded[new] = self.encoded[old]
        if old in self.chosen:
            self.chosen.add(new)

    def _node(self, node: Node) -> None:
        table = next((name for name in node.inputs if name in self.encoded), None)
        if table is not None and node.op in NODES and NODES[node.op].uses_model:
            source, shape, whole, last = self.encoded[table]
            model, column = self._handle(node).name, shape.prompt or shape.answer
            self.prompt_uses.append(PromptUse(node, source, column, model, table in self.chosen, shape, whole, last))
        if node.op in _BY_OPERATION:
            _BY_OPERATION[node.op](self, node)
        elif node.op in NODES and NODES[node.op].generates:
            self._generate(node)

    def _read(self, node: Node) -> None:
        self.tables[node.outputs[0].name] = Origin(self._handle(node).name)

    def _tensor(self, node: Node) -> None:
        for let in node.body:
            self._expr(let.expr)
            if isinstance(let.expr, Ref):
                self._copy_origin(let.expr.name, let.name)

    def _keep(self, node: Node) -> None:
        self._number(node.inputs[0], node.span)
        for name, value in zip(node.inputs[1:], node.outputs, strict=True):
            self._copy_origin(name, value.name)
            self.chosen.add(value.name)

    def _part(self, node: Node) -> None:
        """Note that what a player was told, or a line of an episode, comes from the same rows of the data."""
        self._copy_origin(node.inputs[0], node.outputs[0].name)

    def _pick(self, node: Node) -> None:
        self._copy_origin(node.inputs[0], node.outputs[0].name)
        self.chosen.add(node.outputs[0].name)

    def _encode(self, node: Node) -> None:
        output = node.outputs[0].name
        if any(name in self.chosen for name in node.inputs):
            self.chosen.add(output)
        if node.inputs[0] in self.tables:
            self._encode_rows(node, self.tables[node.inputs[0]].source)
            return
        for name in node.inputs:
            self._texts(name, node.span, ("text", "messages"))
        sides = [self.columns[name] for name in node.inputs if name in self.columns]
        if len(sides) == len(node.inputs) and len({side.source for side in sides}) == 1:
            shape = RowFormat(sides[-1].name, sides[0].name if len(sides) > 1 else "")
            self.encoded[output] = sides[0].source, shape, False, attribute_value(node, "turns") == "last"

    def _encode_rows(self, node: Node, source: str) -> None:
        """Check the columns of rows that are encoded as a table."""
        output, known = node.outputs[0].name, self.contents.get(source)
        self.tables[output] = self.tables[node.inputs[0]]
        if not known:
            return
        answer = attribute_value(node, "answer")
        shape = format_of_columns(known, answer)
        if shape is None:
            what = f"no column `{answer}`" if answer else "no columns that `encode` knows"
            hint = f"it has {quoted_list([*known], 'and')}: name them, `encode(rows.prompt, rows.response)`"
            self._note(Diagnostic("E0771", f"`{source}` has {what}", node.span, hint))
            return
        self.encoded[output] = source, shape, True, attribute_value(node, "turns") == "last"
        if shape.paired and not shape.prompt:
            self._note(unread_prompt_error(source, shape, known, node.span))
        for name in shape.columns:
            use = ColumnUse(source, name, known[name], node.span)
            if not self._note(missing_column_error(use)):
                self._note(prompt_error(use, ("text", "messages"), node.span))

    def _length(self, node: Node) -> None:
        self._texts(node.inputs[0], node.span, ("text", "messages"))

    def _compose(self, node: Node) -> None:
        """Check the columns that stand in a text."""
        for use in (self.columns[name] for name in node.inputs if name in self.columns):
            if not self._note(missing_column_error(use)):
                self._note(braced_column_error(use, node))
        [name, *others], output = node.inputs, node.outputs[0].name
        if name in self.columns and not others and node.op == "compose" and not any(node.attr("pieces")):
            self.written[output] = self.columns[name], attribute_value(node, "role") is not None
        self.chosen |= {output} if self.chosen & {*node.inputs} else set()

    def _roll(self, node: Node) -> None:
        """Note that a value of other rows is of the same column."""
        self._copy_origin(node.inputs[0], node.outputs[0].name)

    def _row(self, node: Node) -> None:
        """Check the texts and messages that are pieces of rows."""
        if node.inputs[0] in self.tables:
            self.tables[node.outputs[0].name] = self.tables[node.inputs[0]]
        for name in node.inputs[1:]:
            self._texts(name, node.span, ("text", "messages"))

    def _prefix(self, node: Node) -> None:
        """Check the column that says how many tokens stay."""
        if node.inputs[0] in self.tables:
            self.tables[node.outputs[0].name] = self.tables[node.inputs[0]]
        for name in node.inputs[1:]:
            self._number(name, node.span)

    def _lookup(self, node: Node) -> None:
        use = self.columns.get(node.inputs[1])
        if use is not None:
            self.keys.setdefault(self._handle(node).name, []).append(use)
            if not self._note(missing_column_error(use)):
                self._note(key_error(use))

    def _assign(self, node: Node) -> None:
        self._lookup(node)
        self._number(node.inputs[2], node.span)

    def _push(self, node: Node) -> None:
        if node.inputs[1] in self.tables:
            self.buffers[self._handle(node).name] = self.tables[node.inputs[1]]

    def _sample(self, node: Node) -> None:
        name = self._handle(node).name
        if name in self.buffers:
            self.tables[node.outputs[0].name] = self.buffers[name]

    def _recall(self, node: Node) -> None:
        """Check the key, as that of a state, and note from which data the rows are."""
        self._lookup(node)
        self._sample(node)

    def _data_column(self, table: str, name: str, span: Span) -> ColumnUse | None:
        """Return a column of the data from which a table's rows came, if the data have been read."""
        origin = self.tables.get(table)
        columns = None if origin is None else self.contents.get(origin.source)
        if origin is None or not columns or not (in_data := origin.column_in_data(name)):
            return None
        if self._note(missing_part_error(columns, in_data, span)):
            return None
        column = column_at(columns, in_data)
        return None if column is None else ColumnUse(origin.source, in_data, column, span)

    def _column(self, node: Node) -> None:
        kind, name = self.types[node.inputs[0]], str(node.attr("name"))
        assert isinstance(kind, Table)
        built_in = replace(kind, data=()).column_types()
        if name in built_in:
            self._hidden(node, name, built_in)
        use = None if name in built_in else self._data_column(node.inputs[0], name, node.span)
        if use is not None:
            self.columns[node.outputs[0].name] = use
            if node.inputs[0] in self.chosen:
                self.chosen.add(node.outputs[0].name)
            self._note(missing_column_error(use))

    def _hidden(self, node: Node, name: str, built_in: Mapping[str, Type]) -> None:
        """Note that a column of episodes hides one of the data."""
        use = self._data_column(node.inputs[0], name, node.span) if TURNS in built_in and name != "prompt" else None
        if use is None or name not in (self.contents.get(use.source) or {}):
            return
        message = f"`{node.span.covered_text}` is the episode's, and hides the column `{name}` of `{use.source}`"
        hint = f"`{use.source}.{name}` is that of the data; or give it another name there"
        self.warnings.append(Diagnostic("W0515", message, node.span, hint))

    def _handle(self, node: Node) -> StateHandle:
        """Return the type of what a node reads or changes across steps."""
        kind = self.types[node.inputs[0]]
        assert isinstance(kind, StateHandle)
        return kind

    # Uses

    def _generate(self, node: Node) -> None:
        """Check the rows that a model answers, and which of their columns has the prompts."""
        name, output, kind = node.inputs[1], node.outputs[0].name, self.types[node.inputs[1]]
        origin, asked = self.tables.get(name), prompt_column_of(node) or "prompt"
        if name in self.written and not NODES[node.op].foreign:
            (text, as_message), model, chosen = self.written[name], self._handle(node).name, name in self.chosen
            self.written_uses.append(PromptUse(node, text.source, text.name, model, chosen, as_message=as_message))
        if origin is None or not isinstance(kind, Table):
            return
        if kind.start != "text":
            self.tables[output] = origin
            return
        if name in self.chosen:
            self.chosen.add(output)
        computed = asked in replace(kind, data=()).column_types()
        origin = self.tables[output] = replace(origin, prompt="" if computed else origin.column_in_data(asked))
        if origin.prompt:
            model, chosen = self._handle(node).name, name in self.chosen
            # With an environment the prompts come from the environment, too.
            uses = self.episode_uses if NODES[node.op].foreign else self.prompt_uses
            uses.append(PromptUse(node, origin.source, origin.prompt, model, chosen, whole=True))
        use = None if computed else self._data_column(name, asked, node.span)
        if use is not None:
            self._note(missing_column_error(use))
            self._note(prompt_error(use, ("text", "messages"), use.span))

    def _expect(self, node: Node) -> None:
        """Check the column by which rows begin."""
        name = attribute_value(node, "column")
        use = self._data_column(node.inputs[0], str(name), node.span) if name else None
        if use is None:
            return
        self._note(missing_column_error(use))
        self.columns[f"{node.name}.{name}"] = use
        self._number(f"{node.name}.{name}", node.span)

    def _call(self, node: Node) -> None:
        """Check that every row has the columns that a function takes."""
        function = self.functions.get(str(node.attr("func")))
        origin = self.tables.get(node.inputs[0])
        source = origin.source if origin else ""
        for name, column in (self.contents.get(source) or {}).items():
            other = origin is not None and origin.column_in_data(name) != name
            if function and function.accepts_column(name) and name not in node.attr("names") and not other:
                self._note(missing_column_error(ColumnUse(source, name, column, node.span)))
        kind = self.types[node.inputs[0]]
        if function and origin is None and isinstance(kind, Table) and kind.data == COMPUTED_PROMPTS:
            missing = function.missing_columns({*COMPUTED_PROMPTS, *node.attr("names")})
            data = kind.axis.root_axis.name
            self._note(ungiven_column_error(node, missing, data, self.contents.get(data) or ()))
        sampler = sampling_node(node.inputs[0], self.makers)
        if origin and origin.prompt and sampler and not NODES[sampler.op].foreign:
            given = zip(node.attr("names"), node.inputs[1:], strict=True)
            columns = {name: self._given_column(value) for name, value in given}
            self.function_uses.append(
                FunctionUse(str(node.attr("func")), source, origin.prompt, rows_per_input(sampler), columns)
            )

    def _given_column(self, value: str) -> GivenColumn:
        """Return what is known of a column that the program gives to a function."""
        use, kind = self.columns.get(value), self.types[value]
        assert isinstance(kind, Tensor)
        return GivenColumn(kind.dtype, use.name if use else "")

    def check_keys(self) -> None:
        """Check that the keys of a state are all texts, or all numbers."""
        for state, uses in self.keys.items():
            self._note(mixed_keys_error(state, uses))


_BY_OPERATION: Mapping[str, Callable[[_UseWalk, Node], None]] = {
    "read": _UseWalk._read,
    "column": _UseWalk._column,
    "tensor": _UseWalk._tensor,
    "keep": _UseWalk._keep,
    "pick": _UseWalk._pick,
    "player": _UseWalk._part,
    "branch": _UseWalk._part,
    "encode": _UseWalk._encode,
    "length": _UseWalk._length,
    "compose": _UseWalk._compose,
    "joined": _UseWalk._compose,
    "roll": _UseWalk._roll,
    "row": _UseWalk._row,
    "prefix": _UseWalk._prefix,
    "lookup": _UseWalk._lookup,
    "assign": _UseWalk._assign,
    "expect": _UseWalk._expect,
    "call": _UseWalk._call,
    "push": _UseWalk._push,
    "sample": _UseWalk._sample,
    "recall": _UseWalk._recall,
}
"""How each operation uses tables and columns, except those that generate."""
