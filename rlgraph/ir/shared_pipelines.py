"""Geometry of pipelines that models with heterogeneous splits over the same devices share.

A shared stage is as wide as the widest stage of a model. A model with narrower stages has replicas side by side on it,
and one with fewer stages has replicas behind each other along the stages; for its rows all of these are ordinary
replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlgraph.ir.mesh import Mesh


@dataclass(frozen=True, slots=True)
class SharedStages:
    """The size of a block of shared stages, each of which is a pipeline of its own."""

    stages: int
    """The number of stages of a block."""
    width: int
    """The number of devices of a stage."""

    @property
    def devices_per_block(self) -> int:
        """The number of devices of a block."""
        return self.stages * self.width

    def replicas_along_stages(self, split: Mesh) -> int:
        """Return how many replicas of a model are behind each other along the stages of a block."""
        return self.stages // split.axis_size("pp")

    def rank_device_positions(self, split: Mesh) -> tuple[int, ...]:
        """Return for each rank of a mesh its place among all devices, which are ordered by block, then by stage.
        Replicas are numbered side by side first, then along the stages."""
        stage_width, stages = ranks_per_stage(split), split.axis_size("pp")
        side_by_side, behind = self.width // stage_width, self.replicas_along_stages(split)
        places = []
        for rank in range(split.rank_count):
            copy, inner = divmod(rank, stages * stage_width)
            stage, at = divmod(inner, stage_width)
            copy, side = divmod(copy, side_by_side)
            block, number = divmod(copy, behind)
            places.append(((block * behind + number) * stages + stage) * self.width + side * stage_width + at)
        return tuple(places)

    def block_and_stage(self, place: int) -> tuple[int, int]:
        """Return the block of a place, and the stage in it."""
        block, inner = divmod(place, self.devices_per_block)
        return block, inner // self.width


def ranks_per_stage(split: Mesh) -> int:
    """Return the number of ranks of one replica's stage."""
    return split.replica_size // split.axis_size("pp")


def shared_stages(splits: Sequence[Mesh]) -> SharedStages:
    """Return the shared stages of meshes for which there is no `stage_misfit`."""
    return SharedStages(max(split.axis_size("pp") for split in splits), max(map(ranks_per_stage, splits)))


def stage_misfit(splits: Sequence[Mesh]) -> str:
    """Return why meshes over the same devices cannot share stages; empty if they can."""
    shared, size = shared_stages(splits), splits[0].rank_count
    for name, counts, most in (
        ("stages", [split.axis_size("pp") for split in splits], shared.stages),
        ("devices for a stage", [ranks_per_stage(split) for split in splits], shared.width),
    ):
        if misfits := sorted({count for count in counts if most % count}):
            return f"{' and '.join(map(str, misfits))} {name} do not divide {most}"
    if size % shared.devices_per_block:
        return f"{shared.stages} stages of {shared.width} devices are not among {size}"
    return ""
