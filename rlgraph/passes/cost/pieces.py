"""How long rows are that are made of pieces, and what is sampled behind them."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table, Type
from rlgraph.passes.cost.lengths import Lengths

RowLengths = tuple[Lengths, Lengths]
"""Tokens of prompts, and tokens with loss."""


def prompt_lengths(asked: Type, lengths: Mapping[str, RowLengths], prompt: Lengths) -> Lengths:
    """Return the tokens that a model goes on from: those of the prompt, and where it goes on from rows, theirs, too."""
    if not isinstance(asked, Table) or asked.start != "row" or not asked.token or asked.token.key not in lengths:
        return prompt
    before, response = lengths[asked.token.key]
    return _longer(before, response.mean)


def lengths_of_pieces(
    node: Node, types: Mapping[str, Type], lengths: Mapping[str, RowLengths], prompt: Lengths
) -> dict[str, RowLengths]:
    """Return by their axis of tokens the lengths of rows that a node makes of others: of the first of their tokens, or
    of several tables. Of a node that makes none, nothing."""
    kind = node.outputs[0].type if node.outputs else None
    if not isinstance(kind, Table) or kind.start != "row" or not kind.token or kind.token.key in lengths:
        return {}
    tables = [table for name in node.inputs if isinstance(table := types[name], Table) and table.token]
    known = [lengths[table.token.key] for table in tables if table.token and table.token.key in lengths]
    if not known:
        return {kind.token.key: (prompt, prompt)}
    before, response = known[0]
    if len(known) == 1:
        # A prefix of an unknown length is half of the row.
        limit = node.attr("tokens")
        cut = response.capped(limit) if limit else Lengths(tuple(value / 2 for value in response.values))
        return {kind.token.key: (before, cut)}
    # The last table of a row is its first input, and once more among its pieces.
    pieces = known[1:]
    return {kind.token.key: (pieces[0][0], _longer(pieces[0][1], sum(of_piece.mean for _, of_piece in pieces[1:])))}


def _longer(lengths: Lengths, tokens: float) -> Lengths:
    return Lengths(tuple(value + tokens for value in lengths.values)) if tokens else lengths
