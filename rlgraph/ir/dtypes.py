"""Sizes of dtypes, and the dtypes that models compute in."""

from __future__ import annotations

from collections.abc import Mapping

ITEM_BYTES: Mapping[str, int] = {"float8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}

OF_MODELS = ("float32", "float64", "bfloat16")
"""The dtypes that a program may give a model."""

AUTO = "auto"
AUTOCAST = ("bfloat16", AUTO)
"""What products of float32 weights may be computed in; `auto` is decided where a run begins."""
