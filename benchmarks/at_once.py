"""Processes that answer at once, so that what a step takes is what its controller takes: executor, dispatch, ledger and
pickles are those of a run on Ray, and there are as many processes as one likes."""

from __future__ import annotations

import itertools
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.clocks import Clock, ThreadClock
from rlgraph.backends.device_queues import DeviceQueues
from rlgraph.backends.distributed.backend import DistributedBackend
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.exchange.exchange import ExchangeCost
from rlgraph.backends.in_flight import Things
from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.processes import Losing, Processes
from rlgraph.backends.ray.requests import AxisRows, RankRequest, Receipt, pickle_message, unpickle_request
from rlgraph.backends.ray.row_refs import Address, PieceRef, ValueRef
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.backends.ray.transport import RayTransport
from rlgraph.backends.ray.worker import Worker, WorkerSpec
from rlgraph.backends.steps import Observer, SilentObserver
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.backends.worker.session import Settings
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Program, program_axes, with_node_ids
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import StateHandle, axis_of

NODE = 8
"""Devices of a machine."""

MODEL = "meta-llama/Meta-Llama-3-70B"
HEADS = 8
"""Devices over which each layer is split."""
STAGES = 4
"""Of the pipeline in which the model is trained."""

PROGRAM = Path(__file__).resolve().parents[1] / "rlgraph" / "algorithms" / "grpo.rlf"
PROMPTS, MINI_BATCHES = 1024, 8
SIZES = {"batch=512": f"batch={PROMPTS}", "parts=4": f"parts={MINI_BATCHES}", "Qwen/Qwen2.5-7B-Instruct": MODEL}


def grpo(
    trainers: int,
    samplers: int,
    heads: int = HEADS,
    stages: int = STAGES,
    block: int = 0,
    clock: Clock | None = None,
    observer: Observer | None = None,
    kind: Any = None,
) -> Any:
    """GRPO of a model of 70B by so many copies that train, and so many that generate; 1,024 prompts and 16 samples of
    each, which are trained on in 8 mini-batches. block: rows that are streamed together. observer: who is told what
    happens; nobody if not given. kind: the class of the run."""
    made = compiled_grpo(trainers, samplers, heads, stages, block)
    shapes = {name: shape for name, shape in made.placed.shapes.items() if isinstance(shape, Shape)}
    return (kind or Controlled)(made.program, made.plan, shapes, PROMPTS, clock, observer)


def compiled_grpo(trainers: int, samplers: int, heads: int = HEADS, stages: int = STAGES, block: int = 0) -> Compiled:
    """Return that program, compiled with its schedule."""
    learn, play = trainers * heads * stages, samplers * heads
    schedule = (
        f"schedule grpo\npool learn = {learn} devices\npool play = {play} devices\n"
        f"place actor.train, ref on learn(engine=megatron, tp={heads}, pp={stages}, dp={trainers})\n"
        f"place actor.generate on play(engine=vllm, tp={heads}, dp={samplers})\n"
    )
    return compiled_large(schedule=schedule + (f"stream rollout(block={block})\n" if block else ""))


def compiled_large(**how: Any) -> Compiled:
    """Return that program. how: its schedule, or the cluster that a plan is searched for."""
    text = PROGRAM.read_text()
    for before, after in SIZES.items():
        assert before in text
        text = text.replace(before, after)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PROGRAM.name
        path.write_text(text)
        (path.parent / "gsm8k.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
        return rlgraph.compile(path, **how)


class AtOnce(Processes):
    """Whoever is asked has answered. What goes out is pickled, as it would be."""

    def __init__(self, program: Program, plan: Plan, shapes: Mapping[str, Shape], batch: int) -> None:
        """program: a numbered one. shapes: of its models. batch: rows that are read."""
        specs = {
            (group.name, rank): WorkerSpec(program, group, rank, Settings(), frozenset(), 1.0)
            for group in plan.groups
            for rank in range(group.mesh.rank_count)
        }
        super().__init__(specs, 1.0)
        self.program, self.shapes, self.batch = program, shapes, batch
        self.nodes = [node for _, node in program.walk()]
        self.axes = program_axes(program)
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        """Bytes."""
        self.seconds = 0.0
        """CPU time of the answers: it is not the controller's."""
        self._layouts: dict[tuple[str, int], bytes] = {}
        self._parts: dict[tuple[Address, int], Iterator[Receipt]] = {}
        self._turn = itertools.count()
        self.answers: dict[Any, Callable[..., Any]] = {
            Worker.start_rendezvous: self._address,
            Worker.load_models: self._open,
            Worker.run_packed_request: self._fire,
            Worker.sample_rows: self._sample,
            Worker.next_part: self._next_part,
            Worker.next_sampled_part: self._next_sampled,
            Worker.report_weights: self._held_weights,
            Worker.exchange_weights: self._exchange,
        }
        """What answers each method of a worker; the others answer nothing."""

    def call(self, who: Address, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._count(method.__name__, args, named)
        began = time.thread_time()
        answer = self._answer(who, method, *args)
        self.seconds += time.thread_time() - began
        return answer

    def call_through_leader(
        self, through: Address, to: Sequence[Address], method: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        self._count(method.__name__, args, named)
        began = time.thread_time()
        answers = [self._answer(each, method, *args) for each in to]
        self.seconds += time.thread_time() - began
        return answers

    def pack_rows(self, who: Address, parcels: Sequence[Any]) -> list[Any]:
        self._count("pack", parcels)
        return [("rows", who)] * len(parcels)

    def get(
        self,
        references: Sequence[Any],
        request: CallContext,
        beside: Sequence[Any] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[Any]:
        return [each() if callable(each) else each for each in references]

    def wait_for_first(self, references: Sequence[Any], beside: Sequence[Any] = ()) -> int:
        # All are as fast: they tell of their parts in turn.
        return next(self._turn) % len(references)

    def remote_handle(self, who: Address) -> Any:
        return who

    def fail_waiters(self, why: BaseException) -> None: ...

    def allow_calls(self) -> None: ...

    def replace_groups(self, plan: Plan, names: Collection[str]) -> None:
        raise AssertionError("nobody is lost who answers at once")

    def stop(self) -> None: ...

    def _count(self, name: str, *passing: Any) -> None:
        self.calls[name] += 1
        self.sent[name] += len(pickle.dumps(passing, pickle.HIGHEST_PROTOCOL))

    def forget(self) -> None:
        """Counts from here on."""
        self.calls.clear()
        self.sent.clear()
        self.seconds = 0.0

    # Answers

    def _answer(self, who: Address, method: Callable[..., Any], *args: Any) -> Any:
        answer: Callable[..., Any] = self.answers.get(method, _nothing)
        return answer(who, *args)

    def _address(self, who: Address) -> str:
        return f"{who[0]}:{who[1]}"

    def _open(self, who: Address, *_: Any) -> list[str]:
        if who[0] != HOST:
            return []
        things = [value for phase in self.program.phases for value in phase.graph.inputs]
        kinds = [value.type for value in things]
        return [kind.name for kind in kinds if isinstance(kind, StateHandle) and kind.kind != "model"]

    def _fire(self, who: Address, told: bytes, *arrived: Any) -> bytes:
        order = unpickle_request(told)
        if not order.parts or not order.returns_results:
            return pickle_message(self._receipt(order, len(arrived)))
        self._parts[who, order.number] = self._in_parts(order, len(arrived))
        return self._next_part(who, order.number)

    def _sample(self, who: Address, model: str, told: bytes, *arrived: Any) -> bytes:
        answer: bytes = self.answers[Worker.run_packed_request](who, told, *arrived)
        return answer

    def _next_part(self, who: Address, number: int) -> bytes:
        return pickle_message(next(self._parts[who, number]))

    def _next_sampled(self, who: Address, number: int, model: str) -> bytes:
        return self._next_part(who, number)

    def _in_parts(self, order: RankRequest, senders: int) -> Iterator[Receipt]:
        unit = self.nodes[order.node].unit
        assert unit is not None and unit.axis is not None
        for part, (_, rows) in enumerate(order.parts):
            yield replace(self._receipt(order, senders, {unit.axis: rows}), part=part)
            senders = 0

    def _receipt(self, order: RankRequest, senders: int, part: Mapping[str, int] | None = None) -> Receipt:
        node = self.nodes[order.node]
        if not order.returns_results:
            return Receipt(0.0, 0.0, received_bytes=(4096,) * senders, peak_bytes=10**10)
        there = {told.axis: told.row_count for told in order.rows} | dict(part or {})
        made, sizes = [], dict[str, int | None]()
        for value in node.outputs:
            if isinstance(value.type, StateHandle) and value.type.kind == "model":
                continue
            axis = axis_of(value.type)
            if axis is None:
                sizes[value.name] = None
                continue
            key = axis.row_axis.key
            if key not in there:
                counts = None
                if axis.row_axis.parent is None:
                    there[key] = self.batch
                else:
                    counts = np.full(there[axis.row_axis.parent.key], node.attr("n"))
                    there[key] = int(counts.sum())
                made.append(AxisRows(key, there[key], counts, None))
            sizes[value.name] = there[key]
        named = tuple(told.axis for told in made)
        metrics = dict.fromkeys(node.attr("names", ()), 0.0) if node.op == "report" else {}
        return Receipt(
            0.0, 0.0, tuple(made), named, sizes, metrics=metrics, received_bytes=(4096,) * senders, peak_bytes=10**10
        )

    def _held_weights(self, who: Address, model: str) -> Any:
        group = self.specs[who].group
        if who not in self._layouts:
            layout = engine(group.engine).layout(self.shapes[model], group.mesh, who[1], "causal_lm")
            self._layouts[who] = pickle.dumps(layout)
        machine = f"{group.name} {group.devices[who[1]] // NODE}"
        return lambda: WeightsReport(pickle.loads(self._layouts[who]), torch.bfloat16, machine)

    def _exchange(self, *_: Any) -> ExchangeCost:
        return ExchangeCost(0, 0, 0.0, 0)


def _nothing(*_: Any) -> None:
    return None


class Controlled(DistributedBackend):
    """A run whose processes answer at once."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        shapes: Mapping[str, Shape],
        batch: int,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        """batch: rows that are read in a step. clock: that of a run on Ray, where none is given."""
        program, clock, observer = with_node_ids(program), clock or ThreadClock(), observer or SilentObserver()
        self.processes = AtOnce(program, plan, shapes, batch)
        first: Things = {
            name: ValueRef(PieceRef((0, 0, name), (HOST, 0), 0)) for name in self.processes.load_models(plan)
        }
        transport = RayTransport(
            program, plan, self.processes, DeviceQueues(plan, clock), observer, TraceNotes(program)
        )
        super().__init__(program, plan, transport, clock, observer, first, seed=0)
