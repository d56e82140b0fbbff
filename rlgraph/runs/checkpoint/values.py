"""The encoding of step state as plain data and tensors: positions, states, buffers, surplus.

Plain data is JSON: numbers, texts and lists stand for themselves, and whatever else there is for an object with one
key, which says what it is: `{"tuple": [1, 2]}`, `{"tensor": "things/seen"}`, `{"Cursor": {"epoch": 0, ...}}`. Tensors
are kept apart, by their names. Numbers are restored bit for bit.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.collect_batches import CollectBatch, Surplus
from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import Rows, TableData
from rlgraph.backends.step import Step
from rlgraph.backends.worker.buffers import BufferRows
from rlgraph.conversations import Example
from rlgraph.data import Cursor
from rlgraph.ir import types
from rlgraph.ir.graph import Program

_RECORDS = {
    record.__name__: record
    for record in (
        Cursor,
        Rows,
        Sequences,
        TableData,
        BufferRows,
        KeptTokens,
        Example,
        Step,
        types.Axis,
        types.Tensor,
        types.Table,
        types.StateHandle,
    )
}
"""The dataclasses that are stored field by field."""

_TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    Decimal: (str, Decimal),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
}
"""The types of column values that are stored as text, with the functions to text and back."""


class Unsavable(TypeError):
    """The error for a value that no checkpoint can hold; it names the value's place and type."""


def encode_value(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as plain data, and add its tensors to `tensors` under names that begin with `path`. Raise
    Unsavable."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [encode_value(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": [encode_value(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = enumerate(value.items())
        return {"map": [[encode_value(item, f"{path}/{index}", tensors) for item in pair] for index, pair in pairs]}
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, np.ndarray) and value.dtype.kind in "bif":
        tensors[path] = torch.from_numpy(np.array(value, order="C"))
        return {"array": path}
    if isinstance(value, np.generic) and value.dtype.kind in "bif":
        return {"number": [value.dtype.str, encode_value(value.item(), path, tensors)]}
    if kind in _TEXTS:
        return {kind.__name__: _TEXTS[kind][0](value)}
    if isinstance(value, Frame):
        # The step's metrics have been reported already, and the program gives the types of the values.
        contents = {"step": value.step, "rows": value.rows, "values": value.values}
        return {"Frame": {name: encode_value(item, f"{path}/{name}", tensors) for name, item in contents.items()}}
    if isinstance(value, Surplus):
        going = [batch.inputs for batch in value.unfinished_batches]
        return {
            "Surplus": [
                encode_value(item, f"{path}/{index}", tensors) for index, item in enumerate([value.rows, *going])
            ]
        }
    if _RECORDS.get(kind.__name__) is kind:
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return {kind.__name__: {name: encode_value(item, f"{path}/{name}", tensors) for name, item in values.items()}}
    raise Unsavable(f"{path}: {kind.__module__}.{kind.__qualname__}")


def decode_value(found: Any, tensors: Mapping[str, Tensor], program: Program) -> Any:
    """Return the value that `encode_value` was given. Raise LookupError, ValueError or TypeError for any other data."""

    def decoded(data: Any) -> Any:
        if isinstance(data, list):
            return [decoded(item) for item in data]
        if not isinstance(data, dict):
            return data
        [(kind, inner)] = data.items()
        if kind == "float":
            return float(inner)
        if kind == "tuple":
            return tuple(decoded(item) for item in inner)
        if kind == "map":
            return {decoded(key): decoded(value) for key, value in inner}
        if kind == "tensor":
            return tensors[inner]
        if kind == "array":
            return tensors[inner].numpy()
        if kind == "number":
            return np.dtype(inner[0]).type(decoded(inner[1]))
        if kind == "Frame":
            contents = {name: decoded(item) for name, item in inner.items()}
            phase = next(phase for phase in program.phases if phase.name == contents["step"].phase)
            return Frame(phase.graph.value_types(), **contents)
        if kind == "Surplus":
            rows, *going = decoded(inner)
            return Surplus(rows, tuple(map(CollectBatch.restore, going)))
        for text_type, (_, read) in _TEXTS.items():
            if kind == text_type.__name__:
                return read(inner)
        return _RECORDS[kind](**{name: decoded(item) for name, item in inner.items()})

    return decoded(found)
