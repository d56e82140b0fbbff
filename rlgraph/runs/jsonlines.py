"""Records as lines of JSON, for tools that read what a run and the command line say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def emit(record: dict[str, Any]) -> None:
    """One line of JSON on stdout."""
    import json

    print(json.dumps(finite(record), ensure_ascii=False, allow_nan=False), flush=True)


def finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with nothing for NaN and infinity, which JSON has not."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def with_metrics(fields: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """The record of a step. A metric that is called as one of its fields does not take its place: it is `report.NAME`,
    as its value is called in the graph."""
    return {**fields, **{f"report.{name}" if name in fields else name: value for name, value in metrics.items()}}
