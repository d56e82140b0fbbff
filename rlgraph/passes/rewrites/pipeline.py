"""The list of passes in their order, and the runner, which verifies the graph after each of them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.graph import Program
from rlgraph.ir.text.program_text import program_text
from rlgraph.ir.verify import FUSED, UNIT, BrokenGraph, verify
from rlgraph.ops import NODES, infer_type
from rlgraph.passes.rewrites.fuse import fuse
from rlgraph.passes.rewrites.granularity import granularity
from rlgraph.passes.rewrites.simplify import simplify
from rlgraph.passes.rewrites.split_losses import split


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of the pipeline, with what it may change."""

    run: Callable[[Program], Program]
    changes: Literal["exact", "reorder"]
    """`exact`: the same numbers; `reorder`: the same samples in another order. No pass may change staleness."""
    writes: tuple[str, ...] = ()
    """What nodes have only after it: attributes (`train.micro`), a `unit`, several outputs (`fused`)."""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.run.__name__


PIPELINE: tuple[Pass, ...] = (
    Pass(simplify, "exact"),
    Pass(split, "exact", writes=("train.micro", "train.why")),
    Pass(fuse, "exact", writes=(FUSED,)),
    Pass(granularity, "exact", writes=(UNIT,)),
)


@dataclass(frozen=True, slots=True)
class PassResult:
    """A program after a pass; the first stage, `check`, is the result of the type checker."""

    name: str
    program: Program
    seconds: float = 0.0


class BrokenPass(Exception):
    """Raised where a pass failed or made a broken graph, which is a bug of the compiler. The message names the pass and
    shows what it changed."""


def run_passes(program: Program, pipeline: Sequence[Pass] = PIPELINE) -> list[PassResult]:
    """Return the program after the checker and after each pass."""
    verify_passes(program, ())
    stages = [PassResult("check", program)]
    for index, step in enumerate(pipeline):
        began, rewritten = time.perf_counter(), program
        try:
            rewritten = step.run(program)
            verify_passes(rewritten, pipeline[: index + 1])
        except BrokenGraph as error:
            raise BrokenPass(f"pass {step.name}: {error}{_difference(program, rewritten)}") from error
        except Exception as error:
            raise BrokenPass(f"pass {step.name}: {type(error).__name__}: {error}") from error
        stages.append(PassResult(step.name, rewritten, time.perf_counter() - began))
        program = rewritten
    return stages


def verify_passes(program: Program, done: Sequence[Pass] = PIPELINE) -> None:
    """Raise BrokenGraph unless the program is well formed after these passes."""
    verify(program, NODES, infer_type, {name for step in done for name in step.writes})


def _difference(before: Program, after: Program) -> str:
    """Return the lines that differ, each after a line break."""
    lines = difflib.unified_diff(program_text(before).splitlines(), program_text(after).splitlines(), lineterm="", n=1)
    return "".join(f"\n{line}" for line in lines)
