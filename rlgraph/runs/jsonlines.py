"""JSON Lines records, for tools that read what a run and the command line print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def print_record(record: dict[str, Any]) -> None:
    """Print a record as one line of ASCII JSON, which any stdout can encode and no terminal obeys."""
    import json

    print(json.dumps(encode_nonfinite(record), allow_nan=False), flush=True)


def encode_nonfinite(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the texts "NaN", "Infinity" and "-Infinity" for numbers that JSON lacks, as in Protocol
    Buffers' JSON (https://protobuf.dev/programming-guides/json/)."""
    return {name: encode_nonfinite_value(value) for name, value in record.items()}


def encode_nonfinite_value(value: Any) -> Any:
    """Return the value, or the text that stands for it if it is a number that JSON lacks."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode_nonfinite(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that was read, with these texts replaced by the numbers that they stand for."""
    return {
        name: float(value) if value in ("NaN", "Infinity", "-Infinity") else value for name, value in record.items()
    }


def with_metrics(fields: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the record of a step. A metric with the name of one of the fields does not replace it: it is
    `report.NAME`, as its value is called in the graph."""
    return {**fields, **{f"report.{name}" if name in fields else name: value for name, value in metrics.items()}}
