"""What is to be scheduled: models whose trainings do not depend on each other, on the stages that they share.

A model's replicas lie one behind the other along the stages, all in one direction or all in the other: pipelines
in both directions fill each other's bubbles, since one of them begins where the other one ends (RLHFuse,
arXiv 2409.13221).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Part = Literal["F", "B", "I", "W"]
"""Forward (F); backward (B); of a backward only the gradients of inputs (I), or only those of weights (W)."""

MOST = 500_000
"""The most forwards and backwards of a problem that is read: lists of more take minutes and gigabytes."""


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """A model to be trained, with the seconds and memory of a micro-batch on one of its stages."""

    name: str
    stages: int
    """Of one replica."""
    micro_batches: int
    """Of one replica."""
    forward: float
    """Seconds of a micro-batch on a stage, in all its chunks."""
    backward: float
    """Seconds of a micro-batch on a stage, in all its chunks."""
    copies: int = 1
    memory: float = 0.0
    """Memory of a micro-batch on a stage, in all its chunks, from the beginning of its forward to the end of its
    backward, both halves of it, in any unit."""
    reverse: bool = False
    """Whether the first stage of a replica is the last of those that it lies on."""
    chunks: int = 1
    """Parts of the model on each stage, all alike: a micro-batch goes through all stages once for each."""
    weight: float = 0.0
    """Seconds of `backward` that the gradients of weights take, where they are computed separately from those of
    inputs, for which the stage before waits. 0: they are not separate."""

    def __post_init__(self) -> None:
        for name in ("stages", "micro_batches", "copies", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{self.name}` has {getattr(self, name)} {name.replace('_', '-')}")
        for name in ("forward", "backward", "memory", "weight"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and name in ("forward", "backward")):
                raise ValueError(f"`{name}` of `{self.name}` is {value}")
        if self.weight >= self.backward:
            raise ValueError(f"`weight` of `{self.name}` is {self.weight}: it is a part of `backward`, {self.backward}")

    def part_seconds(self, part: Part) -> float:
        """Return the seconds of a part of a micro-batch in one chunk."""
        of_all_chunks = {"F": self.forward, "B": self.backward, "I": self.backward - self.weight, "W": self.weight}
        return of_all_chunks[part] / self.chunks

    @property
    def micro_batch_parts(self) -> tuple[Part, ...]:
        """The parts that every micro-batch has in every chunk."""
        return ("F", "I", "W") if self.weight else ("F", "B")


@dataclass(frozen=True, slots=True)
class PipelineReplica:
    """A replica of a model, and the stages that it lies on."""

    model: PipelineModel
    stages: tuple[int, ...]
    """The stages in the order in which its micro-batches go forward, once for each chunk; backwards go the other
    way."""

    @property
    def forward_path(self) -> tuple[int, ...]:
        """The stages of a forward: all with the first chunk, then all with the second, and so on."""
        return self.stages * self.model.chunks


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """The models that share the stages of a pipeline, and the memory of a stage."""

    models: tuple[PipelineModel, ...]
    capacity: float | None = None
    """The memory of a stage for what the micro-batches in flight keep."""

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("there is no model")
        least = max(model.memory for model in self.models)
        if self.capacity is not None and not self.capacity >= least:
            raise ValueError(f"a micro-batch in flight needs {least}, and a stage has {self.capacity}")

    @property
    def memory_capacity_or_inf(self) -> float:
        """The capacity, or infinity where there is none."""
        return math.inf if self.capacity is None else self.capacity

    @property
    def stage_count(self) -> int:
        """The number of stages that the models share."""
        return max(model.copies * model.stages for model in self.models)

    @property
    def replicas(self) -> tuple[PipelineReplica, ...]:
        """The replicas of all models, in the order of the models."""
        lines = []
        for model in self.models:
            for copy in range(model.copies):
                stages = range(copy * model.stages, (copy + 1) * model.stages)
                lines.append(PipelineReplica(model, tuple(reversed(stages) if model.reverse else stages)))
        return tuple(lines)

    @property
    def model_of_replica(self) -> tuple[int, ...]:
        """For each replica the number of its model."""
        return tuple(number for number, model in enumerate(self.models) for _ in range(model.copies))

    @property
    def forward_backward_count(self) -> int:
        """The number of forwards and backwards on all stages, in all chunks; halves of a backward count each."""
        return sum(
            len(model.micro_batch_parts) * model.copies * model.stages * model.chunks * model.micro_batches
            for model in self.models
        )


def problem_from_json(data: Mapping[str, Any]) -> PipelineProblem:
    """Return the problem that JSON data describe: `models`, each with the fields of `PipelineModel`, and `capacity`.

    A model that does not say how many replicas it has lies on all stages; one that does not say its direction goes the
    other way than the one before it. Raises ValueError where something is missing, unknown or absurd, and where there
    are more than `MOST` forwards and backwards.
    """
    unknown = set(_keys(data, "the problem")) - {"models", "capacity"}
    if unknown or "models" not in data:
        raise ValueError(f"a problem has `models` and may have `capacity`, not `{min(unknown, default='nothing')}`")
    if not isinstance(data["models"], list):
        raise ValueError("`models` is no list")
    stages = 0
    for number, described in enumerate(data["models"]):
        copies = described.get("copies", 1) if isinstance(described, Mapping) else 1
        _checked(described, number)
        stages = max(stages, copies * described["stages"])
    models = []
    for number, described in enumerate(data["models"]):
        usual = {"name": f"model {number}", "copies": max(1, stages // described["stages"]), "reverse": number % 2 == 1}
        models.append(PipelineModel(**{**usual, **described}))
    capacity = data.get("capacity")
    if capacity is not None and not _number(capacity):
        raise ValueError(f"`capacity` is {capacity!r:.60}: give a number")
    result = PipelineProblem(tuple(models), capacity)
    if result.forward_backward_count > MOST:
        raise ValueError(f"there are {result.forward_backward_count:,} forwards and backwards: {MOST:,} at most")
    return result


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def _checked(described: Any, number: int) -> None:
    names = {field.name: str(field.type) for field in fields(PipelineModel)}
    for key in _keys(described, f"model {number}"):
        if key not in names:
            raise ValueError(f"model {number} has `{key}`: it can have {', '.join(names)}")
        value, kind = described[key], names[key]
        integer = isinstance(value, int) and not isinstance(value, bool)
        fits = {"int": integer, "float": _number(value), "bool": isinstance(value, bool), "str": isinstance(value, str)}
        if not fits[kind]:
            raise ValueError(f"`{key}` of model {number} is {value!r:.60}: give {_KINDS[kind]}")
    missing = [key for key in ("stages", "micro_batches", "forward", "backward") if key not in described]
    if missing:
        raise ValueError(f"model {number} lacks `{missing[0]}`")
    if described["stages"] < 1:
        raise ValueError(f"model {number} has {described['stages']} stages")


def _keys(data: Any, what: str) -> list[str]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{what} is no object with fields")
    return list(data)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
