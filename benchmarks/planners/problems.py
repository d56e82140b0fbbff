"""The problems that placements are compared on: HybridFlow's evaluation (arXiv 2409.19256, section 8.1).

Machines of eight A100-80GB behind 200 Gb/s each; Llama models in bfloat16; prompts and answers of 1,024 tokens each,
1,024 prompts a step; one epoch of eight updates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import rlgraph
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.passes.compilation.default_plan import read_model_shapes
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.search.components import Component, make_components
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.search_settings import SearchSettings
from rlgraph.user_code.files import SearchFolders

MODELS = {
    "7B": "meta-llama/Llama-2-7b-hf",
    "13B": "meta-llama/Llama-2-13b-hf",
    "34B": "codellama/CodeLlama-34b-hf",
    "70B": "meta-llama/Llama-2-70b-hf",
}
TOKENS = 1024
ENGINES = ("megatron", "vllm")
PER_NODE = 8
CHANGES = (
    (r"max_tokens=\d+", f"max_tokens={TOKENS}"),
    (r"batch=\d+", "batch=1024"),
    (r", epochs=\d+", ""),
    (r"causal_lm\(base\)", 'causal_lm(base, dtype="bfloat16")'),
    (r"value_lm\(base\)", 'value_lm(judge, dtype="bfloat16")'),
    (r"reward_lm\(\w+\)", 'reward_lm(judge, dtype="bfloat16")'),
)

GPU = default_constants("gpu")
"""What the paper's workload changes in the programs; critics and reward models are of one size."""

STAGES = {32: 1, 40: 1, 48: 4, 80: 8}
"""Of the pipelines that the paper trains with, by the layers of a model; its tensor parallelism is 8 (section 8.4)."""


def text(name: str) -> str:
    """A program with the paper's workload."""
    found = (Path(rlgraph.__file__).parent / "algorithms" / f"{name}.rlf").read_text("utf-8")
    for old, new in CHANGES:
        found = re.sub(old, new, found)
    return found if "param judge" in found else found.replace("param base", 'param judge = "judge"\nparam base', 1)


class PaperOptions(Options):
    """Training is split as in the paper, its pipelines no longer than there."""

    def legal_deployments(self, component: Component, island: NodeGroup) -> Iterator[Deployment]:
        for deployment in super().legal_deployments(component, island):
            if component.work != "train" or (
                deployment.tp == PER_NODE and deployment.pp <= STAGES[component.config.shape.layers]
            ):
                yield deployment


@dataclass(frozen=True)
class Case:
    """A program with models of some sizes on some machines."""

    program: str
    base: str
    devices: int
    judge: str = ""
    """Of critics and reward models, where they are of another size."""

    @property
    def title(self) -> str:
        return f"{self.program} {self.base}{f'/{self.judge}' if self.judge else ''} on {self.devices}"

    @cached_property
    def cluster(self) -> Cluster:
        return read_cluster(f"{self.devices // PER_NODE}x{PER_NODE}:a100-80gb@200Gb/s/node")

    @cached_property
    def work(self) -> tuple[tuple[Task, ...], list[Component]]:
        """The tasks of a step and the components that do them."""
        sizes = {"base": self.base, "judge": self.judge or self.base}
        compiled = rlgraph.compile(text(self.program), set={name: f'"{MODELS[size]}"' for name, size in sizes.items()})
        program = compiled.program
        fixed = Lengths((float(TOKENS),))
        found = phase_tasks(program, main_phase(program), Workload(fixed, fixed))
        return found, make_components(
            program, compiled.schedule, read_model_shapes(program, SearchFolders(Path())), found
        )

    def problem(self, kind: type[Options] = Options) -> PlacementProblem:
        """With nothing worked out yet."""
        found, own = self.work
        return PlacementProblem(own, self.cluster, kind(found, GPU, SearchSettings(ENGINES)), "time")
