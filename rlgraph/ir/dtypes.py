"""Bytes of a number by its dtype."""

from __future__ import annotations

from collections.abc import Mapping

ITEM_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}

OF_MODELS = ("float32", "float64", "bfloat16")
"""What a model may be asked to compute in."""
