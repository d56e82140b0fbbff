"""A run on a cluster: the controller fires nodes on groups of processes. It sees references and counts, never rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlgraph.backends.executor import Executor, Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.local.nodes import chosen, kept
from rlgraph.backends.local.session import Settings, width
from rlgraph.backends.loops import collect, every, minibatch
from rlgraph.backends.ray.cluster import start
from rlgraph.backends.ray.dispatch import Dispatch, Queues
from rlgraph.backends.ray.processes import What
from rlgraph.backends.ray.remote import PieceRef, Single
from rlgraph.backends.ray.rows import live
from rlgraph.backends.ray.weights import Weights
from rlgraph.backends.steps import Observer, Silent, Steps
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ops.nodes import MODEL_CALLS

_WITH_MODELS = ("generate", "interact", "train", *MODEL_CALLS)


class RayBackend(Steps):
    """Runs a program by a plan."""

    elsewhere = True

    def __init__(
        self, program: Program, plan: Plan, settings: Settings, observer: Observer | None = None, *,
        address: str | None = None, debug: bool = False, seconds: float = 1800.0, memory: int = 0,
    ) -> None:  # fmt: skip
        """Starts every process of the plan and loads its models.

        address: of a Ray cluster; None starts Ray on this machine. debug: all processes are objects in this one, one for
        each group, with the transformers engine. seconds: longest wait for an answer. memory: bytes that the processes need
        together at least. Raises ProgramError for what cannot be opened, RunError for a cluster that cannot hold the plan.
        """
        plan = plan.alone() if debug else plan
        self.program, self.plan, self.settings = program, plan, settings
        self.observer = observer or Silent()
        self.dtype = width(program)
        self.processes = start(program, plan, settings, address=address, debug=debug, seconds=seconds,
                               memory=memory, note=self.observer.opening)  # fmt: skip
        try:
            self.observer.opening("models")
            things = self.processes.open()
            queues = Queues(plan)
            self.dispatch = Dispatch(program, self.processes, queues, self.observer)
            self.weights = Weights(program, plan, self.processes, queues, self.observer)
        except BaseException:
            self.processes.stop()
            raise
        self.handles: dict[str, Any] = {model.name: model.name for model in program.models}
        self.handles |= {name: Single(PieceRef((0, 0, name), (HOST, 0), 0)) for name in things}
        # What `collect` has left over is a frame of references: the controller keeps it itself.
        self.handles |= {each.name: None for each in program.outside if each.record.name == "surplus"}
        blocks = [rows for _, rows in plan.blocks]
        self.executor = Executor(self, settings.block or min(blocks, default=None), together=not debug)

    # Steps

    def begin_step(self, number: int) -> None:
        self.dispatch.begin_step(number)

    def end_step(self) -> tuple[dict[str, float], dict[str, float]]:
        told = self.weights.end_step()
        self.dispatch.end_step()
        needed = live(self.handles.values())
        who = self.processes.who
        references = [self.processes.call(each, "retain", sorted(needed.get(each, ()))) for each in who]
        self.processes.get(references, What(who, "the end of the step"))
        return dict(self.dispatch.metrics), told

    def trained(self) -> dict[str, int]:
        """For each model how many optimizer steps it took."""
        return dict(self.weights.updates)

    def save(self, model: str, folder: Path) -> None:
        """Writes a folder that a model source can name; also after a failure, if the model is whole."""
        self.processes.go_on()
        self.weights.save(model, folder.resolve())

    def streams(self, node: Node, frame: Frame) -> bool:
        """Samples of vLLM leave as soon as they end; a recording is there at once."""
        if node.op != "generate" or self.settings.replay:
            return False
        return self.plan.role(frame.values[node.inputs[0]], node.op).engine == "vllm"

    def parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Made]:
        model = frame.values[node.inputs[0]]
        group = self.plan.role(model, node.op)
        self.weights.bring(model, group, node)
        yield from self.dispatch.parts(node, frame, group, self.weights.versions, sizes)

    def abort(self, why: BaseException) -> None:
        """Whoever waits for an answer gives up."""
        self.processes.give_up(why)

    def close(self) -> None:
        self.processes.stop()

    # Nodes

    def fire(self, node: Node, frame: Frame) -> Made:
        if node.op == "minibatch":
            return minibatch(node, frame, self.executor, f"{self.settings.seed}/{self.dispatch.step}")
        if node.op == "collect":
            return collect(node, frame, self.executor, self.observer.opening)
        if node.op == "every":
            return every(node, frame, self.executor, self.dispatch.step)
        if node.op == "size" and node.attr("axis") in frame.rows:
            return Made({node.name: torch.tensor(frame.size(node.attr("axis")))})
        if node.op == "update":
            target, source = (frame.values[name] for name in node.inputs)
            self.weights.update(target, source, node)
            return Made({node.name: target})
        # An age is that of the present step, which not everybody knows who has the rows.
        if node.op == "column" and node.attr("name") != "age":
            table = frame.values[node.inputs[0]]
            return Made({node.name: replace(table, column=self.dispatch.nodes[id(node)])})
        if node.op in _WITH_MODELS:
            return self.compute(node, frame)
        host = self.plan.group(HOST)
        if node.op in ("keep", "pick"):
            places = self.dispatch.choose(node, frame, host)
            return kept(node, frame, places) if node.op == "keep" else chosen(node, frame, places)
        return self.dispatch.fire(node, frame, host, self.weights.versions)

    def compute(self, node: Node, frame: Frame) -> Made:
        """Work with a model's weights, where the plan puts it, once the weights are there."""
        model = frame.values[node.inputs[0]]
        group = self.plan.role(model, node.op)
        self.weights.bring(model, group, node)
        try:
            made = self.dispatch.fire(node, frame, group, self.weights.versions)
        except KeyboardInterrupt:
            # It comes at the end of an update, whose weights are new ones: they are worth saving.
            if node.op == "train":
                self.weights.trained(model)
            raise
        if node.op == "train":
            self.weights.trained(model)
        return made
