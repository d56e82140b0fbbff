"""Tiny programs for the tests: models of some thousand weights, a few ragged rows, and everything that a run did."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rlgraph.backends.frame import Frame
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.rows import TableData
from rlgraph.backends.steps import StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.dsl.check import check
from rlgraph.dsl.parse import parse_expression
from rlgraph.errors import Source
from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.types import Table
from rlgraph.passes.rewrites.pipeline import run_passes

ALGORITHMS = Path(__file__).parents[2] / "rlgraph" / "algorithms"


def weights(seed: int = 0, hidden: int = 8, layers: int = 1) -> str:
    """Random weights, far enough from uniform that mistakes show. Token 1 ends an answer, and is sampled often."""
    return (
        f'random("qwen2", seed={seed}, hidden_size={hidden}, intermediate_size=12, num_hidden_layers={layers}, '
        "num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3, "
        'tokenizer=chars("abcd>"))'
    )


REWARDS = '''
def exact_match(prompts, completions, completion_ids, **columns):
    """All 1 for some prompts, so that groups without spread are there."""
    return [1.0 if p.startswith("b") else (3 * sum(ids) + len(ids)) % 5 / 4 for p, ids in zip(prompts, completion_ids)]

def spread(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids)) % 7 / 6 for ids in completion_ids]

def ones(prompts, completions, **columns):
    return [1.0 for _ in completions]
'''

ENVS = '''
class Shell:
    """Answers with what it was told; says little, much, or nothing."""

    def reset(self, row):
        self.turn, self.prompt = 0, row["prompt"]
        return row.get("first", ">")

    def step(self, action):
        self.turn += 1
        reward = (len(action) + self.turn + len(self.prompt)) % 3 / 2 - 0.25
        return action[:2] + ">", reward, "d" in action or self.turn >= 3


class Game:
    """Two speak in turns, until one says d: who wins is in what was said last. Some prompts are for black to begin."""

    def reset(self, row):
        self.turn, self.prompt = 0, row["prompt"]
        self.players = ["white", "black"] if len(self.prompt) % 3 else ["black", "white"]
        return self.players[0], row.get("first", ">")

    def step(self, action):
        acting, other = self.players
        self.players.reverse()
        self.turn += 1
        gain = 0 if self.prompt.startswith("b") else (len(action) + self.turn + len(self.prompt)) % 3 - 1
        over = "d" in action or self.turn >= 4
        return other, action[:1] + ">", {acting: gain, other: -gain} if over else 0.0, over
'''

PROMPTS = ["ab", "b", "cdab", "a", "bc", "dddd", "c", "dab", "ba", "ca"]
ANSWERS = ["ab", "", "d", "abcd", "", "ccc", "b", "da", "", "c"]


def data_folder(path: Path) -> Path:
    """The files that the shipped programs name: ragged rows, empty answers among them."""
    prompts = [{"prompt": p, "task": p[0], "place": i} for i, p in enumerate(PROMPTS)]
    first = [">", "", "ab>", ">", "abcdabcdabcd", ">", "", "c", ">", "d>"]
    files = {
        "prompts": prompts,
        "gsm8k": prompts,
        "dapo-math-17k": prompts,
        "tasks": [{**row, "first": text} for row, text in zip(prompts, first, strict=True)],
        "sft": [{"prompt": p, "response": a} for p, a in zip(PROMPTS, ANSWERS, strict=True)],
        "kto": [
            {"prompt": p, "completion": a, "label": i % 3 != 1}
            for i, (p, a) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
        ],
        "preferences": [
            # No two alike: whose score is the greater would be a matter of rounding.
            {"prompt": p, "chosen": a, "rejected": ANSWERS[i - 1]}
            for i, (p, a) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
        ],
    }
    path.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "rewards.py").write_text(REWARDS)
    (path / "envs.py").write_text(ENVS)
    return path


STUDENT_AND_TEACHER = """param student = 0
param master = 0
model actor = causal_lm(student)
model teacher = frozen(causal_lm(master))
data prompts = jsonl("prompts.jsonl", batch=5)
"""
"""What programs of a model and a frozen one begin with."""

EPS = 1e-2
"""Of AdamW, where weights or what follows from them is compared. An update is about lr * g / (|g| + eps), so a rounding
of g moves a weight by lr / eps times as much at most: twice to five times here, and millions of times with the usual
1e-8, which makes whole steps of gradients that are nothing but rounding, other ones on each processor. And with this
one a gradient of the wrong length is seen."""


def shipped(name: str, swaps: Mapping[str, str] | None = None) -> str:
    """The text of an algorithm that ships, with lengths and rates that have no parameter replaced, and `EPS` in each
    `train` that does not say its own. Its rewards are those of `data_folder`."""
    text = (ALGORITHMS / f"{name}.rlf").read_text().replace("rlgraph.rewards:", "rewards.py:")
    text = swap(text, swaps or {})
    return re.sub(r"(train \w+\((?!.*eps=).*)\):", rf"\1, eps={EPS}):", text)


def swap(text: str, swaps: Mapping[str, str]) -> str:
    """The text with pieces replaced; each must be there."""
    for old, new in swaps.items():
        found = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", new, text)
        assert found != text, f"{old!r} is not in the program"
        text = found
    return text


def compile_text(text: str, changes: Mapping[str, str] | None = None, path: str = "p.rlf") -> Program:
    parsed = {name: parse_expression(Source("--set", value)) for name, value in (changes or {}).items()}
    program, _ = check(Source(path, text), parsed)
    return run_passes(program)[-1].program


def without_answers(program: Program, *, longest: int = 1) -> Program:
    """Has the answers of a program that asks for at most `longest` tokens be empty, as those of an agent that asks
    nothing are: rows without a token go through all that comes after."""

    def emptied(graph: Graph) -> Graph:
        nodes = tuple(replace(node, regions=tuple(map(emptied, node.regions))) for node in graph.nodes)
        return replace(graph, nodes=tuple(map(asked_nothing, nodes)))

    def asked_nothing(node: Node) -> Node:
        if node.attr("max_tokens") != longest:
            return node
        return replace(node, attrs=tuple((n, 0 if n == "max_tokens" else value) for n, value in node.attrs))

    return program.with_graphs({phase.name: emptied(phase.graph) for phase in program.phases})


@dataclass
class Sampled:
    """A table that `generate`, `interact` or `encode` made."""

    name: str
    """Of the value."""
    model: str
    ids: tuple[Any, ...]
    tokens: list[list[int]]
    scored: list[list[bool]]
    group: list[int]
    """For each row, the row that it lies in; its own place if it lies in none."""
    columns: dict[str, Any]
    data: tuple[Mapping[str, Any], ...]


@dataclass
class Seen:
    """What one step did."""

    step: StepResult
    sampled: list[Sampled] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    """What the user's functions returned, one call after another."""
    values: dict[str, Any] = field(default_factory=dict)
    """Of each name the last one."""
    losses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """For each trained model, loss and gradient norm of each update."""
    weights: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """After the step."""

    @property
    def metrics(self) -> dict[str, float]:
        return self.step.metrics

    def table(self, name: str) -> Sampled:
        return next(table for table in self.sampled if table.name == name)


class Run:
    """A run whose steps are watched."""

    def __init__(self, program: Program, folder: Path, **settings: Any) -> None:
        self.backend = LocalBackend(program, Settings(folder=folder, **settings))
        self.models = {name: state.engine.model for name, state in self.backend.session.models.items()}
        self.initial = {name: copy.deepcopy(net.state_dict()) for name, net in self.models.items()}
        self.now = Seen(StepResult(0, "", 0.0))
        self.also: Callable[[Node, Frame], None] | None = None
        self.backend.watch = self.watch
        for name, state in self.backend.session.models.items():
            self.hook(name, state.engine)

    def hook(self, name: str, engine: Any) -> None:
        plain = engine.train_step

        def train_step(*args: Any) -> dict[str, float]:
            found = plain(*args)
            self.now.losses.setdefault(name, []).append((found["loss"], found["grad_norm"]))
            return found

        engine.train_step = train_step

    def watch(self, node: Node, frame: Frame) -> None:
        for value in node.outputs:
            self.now.values[value.name] = frame.values[value.name]
        if node.op in ("generate", "interact", "encode"):
            self.now.sampled.append(_sampled(node, frame))
        if node.op == "call":
            self.now.scores.append(frame.values[node.outputs[0].name])
        if self.also:
            self.also(node, frame)

    def steps(self, count: int) -> list[Seen]:
        """The next steps; ends the run's processes."""
        found = []
        try:
            for step in self.backend.run_steps(count):
                self.now.step = step
                self.now.weights = {name: copy.deepcopy(net.state_dict()) for name, net in self.models.items()}
                found.append(self.now)
                self.now = Seen(step)
        finally:
            self.backend.session.close()
        return found


def _sampled(node: Node, frame: Frame) -> Sampled:
    value = node.outputs[0]
    table, kind = frame.values[value.name], value.type
    assert isinstance(table, TableData) and isinstance(kind, Table) and table.sequences is not None
    rows = frame.rows[kind.axis.key]
    counts = table.sequences.lengths.tolist()
    group = list(range(rows.size)) if rows.parent is None else rows.parent.tolist()
    scored = [flags.tolist() for flags in table.sequences.scored.split(counts)]
    return Sampled(
        value.name, table.owner, rows.ids or (), table.sequences.rows(), scored, group, dict(table.columns), table.data
    )


def run_text(
    text: str, folder: Path, steps: int = 1, changes: Mapping[str, str] | None = None, **settings: Any
) -> list[Seen]:
    """Compiles and runs."""
    return Run(compile_text(text, changes), folder, **settings).steps(steps)
