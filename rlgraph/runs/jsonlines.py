"""Records as lines of JSON, for tools that read what a run and the command line say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def emit(record: dict[str, Any]) -> None:
    """One line of JSON on stdout, in ASCII: it can be written whatever is in it, and a terminal obeys nothing."""
    import json

    print(json.dumps(finite(record), allow_nan=False), flush=True)


def finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the texts "NaN", "Infinity" and "-Infinity" for what JSON has no numbers for, as in Protocol
    Buffers' JSON (https://protobuf.dev/programming-guides/json/)."""
    return {name: _text(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in record.items()}


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was read: these texts as the numbers that they are."""
    return {name: float(v) if v in ("NaN", "Infinity", "-Infinity") else v for name, v in record.items()}


def with_metrics(fields: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """The record of a step. A metric that is called as one of its fields does not take its place: it is `report.NAME`,
    as its value is called in the graph."""
    return {**fields, **{f"report.{name}" if name in fields else name: value for name, value in metrics.items()}}
