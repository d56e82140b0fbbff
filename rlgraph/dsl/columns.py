"""Compares what columns of the data hold with how a program uses them.

The checker asks with the rows of the data that it has seen, and a run asks once more before its first step, with all
rows. A use is found in the graph: for each table it is known from which data its rows are, whatever filters, loops and
buffers they went through, and for each value from which column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rlgraph.columns import EVERY_ROW, NO_KEYS, NUMBERS, WORDS, Column
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Const, Expr, Graph, Node, Program, Ref
from rlgraph.ir.types import Handle, Table, Type
from rlgraph.ops import NODES, TENSOR, attribute_value

Known = Mapping[str, Mapping[str, Column] | None]
"""What the columns of each data source hold; None where the data have not been read."""

_MANY = {
    "text": "texts",
    "whole": "whole numbers",
    "real": "real numbers",
    "truth": "true or false",
    "messages": "lists of messages",
    "nested": "lists or objects",
    "other": "what is neither text nor number",
    "large": "whole numbers of more than 64 bits",
    "wide": "numbers that 32 bits cannot hold",
    "odd": "numbers that are not finite",
}


@dataclass(frozen=True, slots=True)
class PromptUse:
    """Prompts of the data that a model answers, or that it reads with their answers."""

    node: Node
    source: str
    column: str
    model: str
    chosen: bool
    """Whether these are only some of the rows: others were left out before."""
    answer: str = ""
    """The column of the answers that follow the prompts, where the model does not generate them."""


class LoadedFunction(Protocol):
    """A function of the program, as far as it is loaded."""

    def takes(self, name: str) -> bool:
        """Return whether the function takes a column of that name."""
        ...


def column_misuses(
    program: Program, known: Known, functions: Mapping[str, LoadedFunction] | None = None
) -> list[Diagnostic]:
    """Return a diagnostic for each use that does not fit what its column holds. `functions`: those that are loaded,
    which know what they take."""
    walk = _UseWalk(program, known, functions or {})
    for phase in program.phases:
        walk.graph(phase.graph, phase.graph.values())
    walk.check_keys()
    return list({(d.code, d.message, str(d.span)): d for d in walk.diagnostics}.values())


def find_prompt_uses(program: Program, known: Known) -> list[PromptUse]:
    """Return where a model answers prompts of the data, or reads them, in the order of the program."""
    walk = _UseWalk(program, known, {})
    for phase in program.phases:
        walk.graph(phase.graph, phase.graph.values())
    return walk.prompt_uses


@dataclass(frozen=True, slots=True)
class _Use:
    """A column at the place where the program uses it."""

    source: str
    """The name of the data source."""
    name: str
    column: Column
    span: Span
    """The place where the column is named."""

    @property
    def shown(self) -> str:
        """The use as the program writes it, if its text is at hand."""
        text = self.span.text if self.span.line else ""
        return f"`{text}`" if text and "\n" not in text and len(text) < 40 else f"the column `{self.name}`"

    @property
    def kinds(self) -> list[str]:
        """The kinds of values that the column holds, without those that it lacks."""
        return [kind for kind in self.column.first if kind not in ("missing", "null")]

    @property
    def many(self) -> str:
        """The kinds of values for a message, with the place of the first of each."""
        parts = [f"{_MANY[kind]}{self._place(kind)}" for kind in self.kinds]
        return " and ".join(parts)

    def _place(self, kind: str) -> str:
        place = self.column.first[kind]
        return f" ({place})" if place else ""


@dataclass(slots=True)
class _UseWalk:
    """Walks graphs in their order, and tracks from which data the rows of each table are and from which column each
    value is."""

    program: Program
    contents: Known
    functions: Mapping[str, LoadedFunction]
    tables: dict[str, str] = field(default_factory=dict)
    """The data source of each table."""
    columns: dict[str, _Use] = field(default_factory=dict)
    """The column that each value holds."""
    buffers: dict[str, str] = field(default_factory=dict)
    """The data source of the rows of each buffer."""
    keys: dict[str, list[_Use]] = field(default_factory=dict)
    """The columns that are keys of each keyed state."""
    encoded: dict[str, tuple[_Use, _Use]] = field(default_factory=dict)
    """The prompts and answers of each table that is made of two columns."""
    chosen: set[str] = field(default_factory=set)
    """Tables and values some of whose rows were left out."""
    prompt_uses: list[PromptUse] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def graph(self, graph: Graph, types: Mapping[str, Type]) -> None:
        for node in graph.nodes:
            for region in node.regions:
                self.graph(region, types)
                exported = region.outputs[len(region.inputs) :]
                for name, value in zip(exported, node.outputs[len(region.inputs) :], strict=False):
                    self._copy_origin(name, value.name)
            self._node(node, types)

    def _copy_origin(self, old: str, new: str) -> None:
        if old in self.tables:
            self.tables[new] = self.tables[old]
        if old in self.columns:
            self.columns[new] = self.columns[old]
        if old in self.encoded:
            self.encoded[new] = self.encoded[old]
        if old in self.chosen:
            self.chosen.add(new)

    def _node(self, node: Node, types: Mapping[str, Type]) -> None:
        table = next((name for name in node.inputs if name in self.encoded), None)
        if table is not None and node.op in NODES and NODES[node.op].with_model:
            prompt, answer = self.encoded[table]
            model = _handle(node, types).name
            self.prompt_uses.append(
                PromptUse(node, prompt.source, prompt.name, model, table in self.chosen, answer.name)
            )
        if node.op in _BY_OPERATION:
            _BY_OPERATION[node.op](self, node, types)
        elif node.op in NODES and NODES[node.op].generates:
            self._generate(node, types)

    def _read(self, node: Node, types: Mapping[str, Type]) -> None:
        self.tables[node.outputs[0].name] = _handle(node, types).name

    def _tensor(self, node: Node, types: Mapping[str, Type]) -> None:
        for let in node.body:
            self._expr(let.expr)
            if isinstance(let.expr, Ref):
                self._copy_origin(let.expr.name, let.name)

    def _keep(self, node: Node, types: Mapping[str, Type]) -> None:
        self._number(node.inputs[0], node.span)
        for name, value in zip(node.inputs[1:], node.outputs, strict=True):
            self._copy_origin(name, value.name)
            self.chosen.add(value.name)

    def _pick(self, node: Node, types: Mapping[str, Type]) -> None:
        self._copy_origin(node.inputs[0], node.outputs[0].name)
        self.chosen.add(node.outputs[0].name)

    def _encode(self, node: Node, types: Mapping[str, Type]) -> None:
        self._texts(node.inputs[0], node.span, ("text", "messages"))
        self._texts(node.inputs[1], node.span, ("text",))
        sides = [self.columns.get(name) for name in node.inputs]
        if sides[0] and sides[1] and sides[0].source == sides[1].source:
            self.encoded[node.outputs[0].name] = sides[0], sides[1]
            if any(name in self.chosen for name in node.inputs):
                self.chosen.add(node.outputs[0].name)

    def _length(self, node: Node, types: Mapping[str, Type]) -> None:
        self._texts(node.inputs[0], node.span, ("text", "messages"))

    def _lookup(self, node: Node, types: Mapping[str, Type]) -> None:
        use = self.columns.get(node.inputs[1])
        if use is not None:
            self.keys.setdefault(_handle(node, types).name, []).append(use)
            self._require(use, key=True)

    def _assign(self, node: Node, types: Mapping[str, Type]) -> None:
        self._lookup(node, types)
        self._number(node.inputs[2], node.span)

    def _push(self, node: Node, types: Mapping[str, Type]) -> None:
        if node.inputs[1] in self.tables:
            self.buffers[_handle(node, types).name] = self.tables[node.inputs[1]]

    def _sample(self, node: Node, types: Mapping[str, Type]) -> None:
        name = _handle(node, types).name
        if name in self.buffers:
            self.tables[node.outputs[0].name] = self.buffers[name]

    def _data_column(self, table: str, name: str, span: Span) -> _Use | None:
        """Return a column of the data from which a table's rows came, if the data have been read."""
        source = self.tables.get(table, "")
        columns = self.contents.get(source)
        if not columns or name not in columns:
            return None
        return _Use(source, name, columns[name], span)

    def _column(self, node: Node, types: Mapping[str, Type]) -> None:
        kind, name = types[node.inputs[0]], str(node.attr("name"))
        assert isinstance(kind, Table)
        built_in = replace(kind, data=()).columns()
        use = None if name in built_in else self._data_column(node.inputs[0], name, node.span)
        if use is not None:
            self.columns[node.outputs[0].name] = use
            if node.inputs[0] in self.chosen:
                self.chosen.add(node.outputs[0].name)
            self._require(use)

    # Uses

    def _require(self, use: _Use, *, key: bool = False) -> None:
        """Check that every row has the column, and, with `key`, a value in it that can be a key."""
        if "missing" in use.column.first:
            message = f"{use.column.first['missing']} has no column `{use.name}`, which other rows have"
            self.diagnostics.append(Diagnostic("E0711", message, use.span, EVERY_ROW))
            return
        odd = next((kind for kind in NO_KEYS if kind in use.column.first), None) if key else None
        if odd is not None:
            message = f"{use.shown} is {WORDS[odd]} in {use.column.first[odd] or 'a row'}, and no key"
            hint = "write a text or a whole number in every row"
            self.diagnostics.append(Diagnostic("E0735", message, use.span, hint))

    def _number(self, name: str, span: Span) -> None:
        """Check that a value that is calculated with is a number."""
        use = self.columns.get(name)
        if use is None:
            return
        odd = next((kind for kind in use.column.first if kind not in (*NUMBERS, "missing")), None)
        if odd is None or odd == "wide" and self._double():
            return
        message = f"{use.shown} holds {use.column.where(odd)}, and one calculates with it"
        self.diagnostics.append(Diagnostic("E0735", message, span if span.line else use.span, _REMEDIES.get(odd, "")))

    def _double(self) -> bool:
        """Return whether the run calculates in 64 bits, as it does if a model does."""
        return any(self.program.dtype(model) == "float64" for model in self.program.models)

    def _expr(self, expr: Expr) -> None:
        if isinstance(expr, Ref):
            return
        for part in _operations(expr):
            if TENSOR[part.op].texts:
                self._compared(part)
                continue
            for arg in part.args:
                if isinstance(arg, Ref):
                    self._number(arg.name, part.span)

    def _compared(self, expr: Apply) -> None:
        """Check that both sides of `==` or `!=` are texts, or both are numbers."""
        sides = [self._side(arg) for arg in expr.args]
        for arg, side, other in zip(expr.args, sides, reversed(sides), strict=True):
            use = self.columns.get(arg.name) if isinstance(arg, Ref) else None
            if use is None or not isinstance(arg, Ref):
                continue
            null_place = use.column.first.get("null")
            if null_place is not None:
                message = f"{use.shown} is null in {null_place or 'a row'}, which is equal to no value"
                hint = "write a value in every row, or compare in a function, which is given `None`"
                self.diagnostics.append(Diagnostic("E0735", message, expr.span, hint))
                return
            if side == "mixed":
                message = f"{use.shown} holds {use.many}, and is compared: a text is equal to no number"
                hint = "write the whole column as texts, or the whole column as numbers"
                self.diagnostics.append(Diagnostic("E0304", message, expr.span, hint))
                return
            if side == "neither":
                message = f"{use.shown} holds {use.many}, which is compared with nothing here"
                hint = "compare texts with texts and numbers with numbers; a function is given the rest as it is"
                self.diagnostics.append(Diagnostic("E0304", message, expr.span, hint))
                return
            if {side, other} == {"texts", "numbers"}:
                self.diagnostics.append(_mismatch(expr, use, side))
                return
            if side == "numbers":
                self._number(arg.name, expr.span)

    def _side(self, expr: Expr) -> str:
        """Return the kind of a side of a comparison: `texts`, `numbers`, `mixed`, `neither`, or "" if it is unknown."""
        if expr.type.dtype == "text":
            return "texts"
        if expr.type.dtype != "any":
            return "numbers"
        use = self.columns.get(expr.name) if isinstance(expr, Ref) else None
        kinds = set(use.kinds) if use else set()
        if not kinds:
            return ""
        if kinds == {"text"}:
            return "texts"
        if kinds <= {*NUMBERS, "odd", "wide", "large"}:
            return "numbers"
        return "mixed" if "text" in kinds else "neither"

    def _generate(self, node: Node, types: Mapping[str, Type]) -> None:
        """Check a table of prompts, or a column of them, that a model answers."""
        name, output = node.inputs[1], node.outputs[0].name
        from_column = self.columns.get(name)
        source = from_column.source if from_column else self.tables.get(name, "")
        # With an environment the prompts come from the environment.
        if source and not NODES[node.op].foreign:
            column = from_column.name if from_column else "prompt"
            self.prompt_uses.append(PromptUse(node, source, column, _handle(node, types).name, name in self.chosen))
        if from_column:
            self._texts(name, node.span, ("text", "messages"))
            return
        if name not in self.tables:
            return
        if name in self.chosen:
            self.chosen.add(output)
        self.tables[output] = self.tables[name]
        use = self._data_column(name, "prompt", node.span)
        if use is not None:
            self._require(use)
            self._prompt(use, ("text", "messages"))

    def _texts(self, name: str, span: Span, wanted: Sequence[str]) -> None:
        if name in self.columns:
            self._prompt(self.columns[name], wanted, span)

    def _prompt(self, use: _Use, wanted: Sequence[str], span: Span | None = None) -> None:
        odd = next((kind for kind in use.column.first if kind not in (*wanted, "missing")), None)
        if odd is None:
            return
        needed = "a text or a list of messages" if "messages" in wanted else "a text"
        message = f"the column `{use.name}` holds {use.column.where(odd)}, and {needed} is needed here"
        hint = "write it as a text in the data, in quotes" if odd in ("whole", "real", "truth") else ""
        hint = "leave such rows out of the data" if odd == "null" else hint
        hint = 'a message is `{"role": "user", "content": "..."}`' if odd == "nested" else hint
        self.diagnostics.append(Diagnostic("E0732", message, span or use.span, hint))

    def _expect(self, node: Node, types: Mapping[str, Type]) -> None:
        """Check the column by which rows begin."""
        name = attribute_value(node, "column")
        use = self._data_column(node.inputs[0], str(name), node.span) if name else None
        if use is None:
            return
        self._require(use)
        self.columns[f"{node.name}.{name}"] = use
        self._number(f"{node.name}.{name}", node.span)

    def _call(self, node: Node, types: Mapping[str, Type]) -> None:
        """Check that every row has the columns that a function takes."""
        function = self.functions.get(str(node.attr("func")))
        source = self.tables.get(node.inputs[0], "")
        for name, column in (self.contents.get(source) or {}).items():
            if function and function.takes(name) and name not in node.attr("names"):
                self._require(_Use(source, name, column, node.span))

    def check_keys(self) -> None:
        """Check that the keys of a state are all texts, or all numbers: 4 is another key than "4"."""
        for state, uses in self.keys.items():
            kinds = [{"texts" if kind == "text" else "numbers" for kind in use.kinds} for use in uses]
            odd = next((use for use, use_kinds in zip(uses, kinds, strict=True) if len(use_kinds | kinds[0]) > 1), None)
            if odd is None:
                continue
            message = f"{odd.shown} holds {odd.many}, and the keys of `{state}` would be texts and numbers"
            if odd is not uses[0] and uses[0].many != odd.many:
                message = f"{odd.shown} holds {odd.many}, and {uses[0].shown}, by which `{state}` is kept too, "
                message += uses[0].many
            hint = 'write all of them as texts, or all as numbers: 4 and "4" are two keys'
            self.diagnostics.append(Diagnostic("E0304", message, odd.span, hint))


def _handle(node: Node, types: Mapping[str, Type]) -> Handle:
    """Return the type of what a node reads or changes across steps."""
    kind = types[node.inputs[0]]
    assert isinstance(kind, Handle)
    return kind


_REMEDIES = {
    "text": "write numbers without quotes in the data",
    "null": "write a number in every row, or keep the rows that have one in a file of their own",
    "odd": "write a number in every row: NaN and infinity go on into every sum",
    "wide": "divide by what makes it of the size of others",
    "large": "write it as a text: whole numbers have 64 bits",
}


def _mismatch(expr: Apply, use: _Use, side: str) -> Diagnostic:
    """Return the diagnostic for a column of numbers compared with a text, or of texts with a number."""
    constant = next((arg for arg in expr.args if isinstance(arg, Const)), None)
    if side == "numbers":
        message = f"{use.shown} holds {use.many}, and is compared with a text: they are never equal"
        hint = f'write texts in the data, as "{use.name}": "4"'
        if constant is None:
            hint += '; or compare numbers, in a function: `python("rlgraph.rewards:exact_match")` does'
        elif str(constant.value).lstrip("-").replace(".", "", 1).isdecimal():
            hint += f"; or compare with a number: `{constant.value}`"
        return Diagnostic("E0304", message, expr.span, hint)
    message = f"{use.shown} holds {use.many}, and is compared with a number: they are never equal"
    shown = (
        str(constant.value).lower()
        if constant is not None and isinstance(constant.value, bool)
        else constant and constant.value
    )
    hint = f'compare with a text: `"{shown}"`' if constant is not None else "compare with a column of texts"
    return Diagnostic("E0304", message, expr.span, f'{hint}; or write numbers in the data, as "{use.name}": 4')


def _operations(expr: Expr) -> Iterator[Apply]:
    """Yield every operation in an expression once, even where parts are shared."""
    pending: list[Expr] = [expr]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, Apply) and id(part) not in seen:
            seen.add(id(part))
            yield part
            pending += part.args


_BY_OPERATION: Mapping[str, Callable[[_UseWalk, Node, Mapping[str, Type]], None]] = {
    "read": _UseWalk._read,
    "column": _UseWalk._column,
    "tensor": _UseWalk._tensor,
    "keep": _UseWalk._keep,
    "pick": _UseWalk._pick,
    "encode": _UseWalk._encode,
    "length": _UseWalk._length,
    "lookup": _UseWalk._lookup,
    "assign": _UseWalk._assign,
    "expect": _UseWalk._expect,
    "call": _UseWalk._call,
    "push": _UseWalk._push,
    "sample": _UseWalk._sample,
}
"""How each operation uses tables and columns, except those that generate."""
