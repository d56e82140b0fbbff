"""Models that are split unlike over the same devices, and have the stages of one pipeline in common.

A stage that they have in common is as wide as the widest of a model's own. A model with narrower ones has copies side
by side on it, and one with fewer stages has copies behind each other: to its rows both are copies as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlgraph.ir.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Common:
    """Blocks of stages, each a pipeline by itself."""

    stages: int
    """Of a block."""
    width: int
    """Devices of a stage."""

    @property
    def size(self) -> int:
        """Devices of a block."""
        return self.stages * self.width

    def behind(self, split: Mesh) -> int:
        """Copies of a model that lie behind each other along the stages of a block."""
        return self.stages // split.length("pp")

    def places(self, split: Mesh) -> tuple[int, ...]:
        """For each rank of a mesh its place among all devices: block after block, stage after stage. Of copies those
        side by side come first, then those behind each other."""
        own, long = width(split), split.length("pp")
        beside, behind = self.width // own, self.behind(split)
        found = []
        for rank in range(split.size):
            copy, inner = divmod(rank, long * own)
            stage, at = divmod(inner, own)
            copy, side = divmod(copy, beside)
            block, number = divmod(copy, behind)
            found.append(((block * behind + number) * long + stage) * self.width + side * own + at)
        return tuple(found)

    def at(self, place: int) -> tuple[int, int]:
        """The block of a place, and the stage of it."""
        block, inner = divmod(place, self.size)
        return block, inner // self.width


def width(split: Mesh) -> int:
    """Ranks of a stage of one copy."""
    return split.copy_size // split.length("pp")


def common(splits: Sequence[Mesh]) -> Common:
    """Of meshes that fit together."""
    return Common(max(each.length("pp") for each in splits), max(map(width, splits)))


def misfit(splits: Sequence[Mesh]) -> str:
    """Why meshes over the same devices have no stages in common; empty where they have."""
    whole, size = common(splits), splits[0].size
    for name, own, most in (
        ("stages", [each.length("pp") for each in splits], whole.stages),
        ("devices for a stage", [width(each) for each in splits], whole.width),
    ):
        if odd := sorted({each for each in own if most % each}):
            return f"{' and '.join(map(str, odd))} {name} do not divide {most}"
    if size % whole.size:
        return f"{whole.stages} stages of {whole.width} devices are not among {size}"
    return ""
