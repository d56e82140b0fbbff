"""What the flags of a processor say of its matrix products."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

BFLOAT16_UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}
"""Flags of processors that multiply bfloat16 faster than float32, and the names of what does it."""


def bfloat16_units(flags: Collection[str]) -> tuple[str, ...]:
    """Return what multiplies bfloat16 fast in a processor with these flags; nothing where float32 is as fast."""
    return tuple(name for flag, name in BFLOAT16_UNITS.items() if flag in flags)


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the flags of this machine's processor, as Linux lists them; none elsewhere."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return frozenset()
    return frozenset(text.split("\nflags", 1)[-1].split("\n", 1)[0].split())
