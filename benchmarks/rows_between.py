"""What the rows of a step cost between the models: the mathematics of PPO on rows that nobody has to sample.

Real processes on Ray, of which those with models make up what models would answer: one has all models, and the host
one or more. `controller.py --rows` prints it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A batch of 8,192 rows of 8,192 tokens needs more than the one gigabyte that a run on this machine takes for rows.
os.environ.setdefault("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", str(9 << 30))
sys.path[:0] = [str(HERE.parent), str(HERE / "peers")]

import torch

import rlgraph
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.ray import cluster, rank_requests, worker
from rlgraph.backends.ray.piece_store import Wire, Wish
from rlgraph.backends.ray.requests import RankRequest, Receipt
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.sampling import table_output
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import NODES, model_of
from rlgraph.runs.events import EventReader, WorkDone

PROGRAM = """
algorithm between

param base   = "toy"
model actor  = causal_lm(base)
model critic = value_lm(base)
model ref    = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=ROWS)

step:
    rollout = actor.generate(prompts, max_tokens=TOKENS)
    old     = actor.logprobs(rollout)
    base_lp = ref.logprobs(rollout)
    value   = critic.values(rollout)
    r       = rollout.end - 0.05 * k1(old, base_lp)
    adv     = gae(r, value, 1.0, 0.95)
    target  = adv + value
    train critic(lr=5e-6):
        minimize 0.5 * mean((critic.values(rollout) - target)**2)
    train actor(lr=1e-6):
        minimize mean(-exp(actor.logprobs(rollout) - old) * adv)
    report length = mean(size(old, by=prompts))
"""

FOLDER = "RLGRAPH_ROWS_BETWEEN"
"""Where each process writes its seconds, and what it was told."""


class MadeUp(worker.Worker):
    """A process whose models answer at once, with numbers that mean nothing, and which counts its seconds."""

    def load_models(self, *args: Any) -> list[str]:
        self.spent: dict[str, float] = defaultdict(float)
        self.longest = int(os.environ[FOLDER].rpartition("-")[2])
        made = super().load_models(*args)
        real = rank_requests.run_node

        def run(node: Node, frame: Frame, session: Session) -> NodeOutput:
            if NODES[node.op].generates:
                return self.sampled(node, frame)
            if NODES[node.op].scores:
                return NodeOutput({node.outputs[0].name: self.scored(node, frame)})
            with self.counts(f"{node.op} {node.name}"):
                return real(node, frame, session)

        def train(node: Node, frame: Frame, session: Session, idle: bool) -> NodeOutput:
            return NodeOutput({node.name: frame.values[model_of(node)]})

        rank_requests.run_node = run
        rank_requests.TRAINING = {"train": train}
        return made

    @contextmanager
    def counts(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.spent[what] += time.perf_counter() - began

    def pack_parcel(self, wanted: Sequence[Wish]) -> Wire:
        with self.counts("packing"):
            return super().pack_parcel(wanted)

    def store_arrived(self, order: RankRequest, arrived: Sequence[Wire]) -> tuple[int, ...]:
        with self.counts("taking in"):
            came = super().store_arrived(order, arrived)
        self.spent["received bytes"] += sum(came)
        return came

    def fill_frame(self, frame: Frame, order: RankRequest) -> Frame:
        with self.counts("finding rows"):
            return super().fill_frame(frame, order)

    def make_receipt(self, *args: Any, **named: Any) -> Receipt:
        with self.counts("putting away"):
            made = super().make_receipt(*args, **named)
        path = Path(os.environ[FOLDER]) / f"{self.spec.group.name}-{self.spec.rank}.json"
        path.write_text(json.dumps(self.spent))
        return made

    def sampled(self, node: Node, frame: Frame) -> NodeOutput:
        rows = frame.rows[node.outputs[0].type.axis.key]
        data = frame.values[node.inputs[1]].data
        random = torch.Generator().manual_seed(frame.step.number)
        lengths = torch.randint(self.longest // 2, self.longest + 1, (rows.size,), generator=random)
        count = int(lengths.sum())
        tokens = torch.full((count,), 7)
        table = TableData(
            data,
            tuple(row["prompt"] for row in data),
            Sequences(tokens, lengths, torch.ones(count, dtype=torch.bool)),
            {
                "logprobs": torch.rand(count, generator=random),
                "finished": torch.ones(rows.size, dtype=torch.bool),
                "version": torch.zeros(rows.size, dtype=torch.long),
            },
            "actor",
        )
        return table_output(node, rows, rows.known_ids, table, 1)

    def scored(self, node: Node, frame: Frame) -> torch.Tensor:
        table = frame.values[node.inputs[1]]
        random = torch.Generator().manual_seed(frame.step.number)
        return torch.rand(len(table.sequences.tokens), generator=random)


class Watch(EventReader):
    """Seconds from a request to its answer, by node, and the bytes that the processes got for it."""

    def __init__(self) -> None:
        self.works: list[tuple[str, str, float]] = []
        self.ends: list[float] = []

    def work_done(self, event: WorkDone) -> None:
        self.works.append((event.node.op, event.node.name, event.seconds))
        if event.node.op == "report":
            self.ends.append(time.time())


def between(rows: int, tokens: int, host: int, steps: int) -> dict[str, Any]:
    """Return seconds of the last step, and of all steps what processes spent, by process."""
    import toy

    folder = Path(tempfile.mkdtemp(prefix="between", suffix=f"-{tokens}"))
    os.environ |= {
        FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")]),
    }
    toy.make_model(0, max_position_embeddings=2 * tokens).save_pretrained(folder)
    toy.make_tokenizer().save_pretrained(folder)
    (folder / "prompts.jsonl").write_text('{"prompt": "t7"}\n' * rows)
    lines = "schedule between\npool models = 1 devices\nplace actor, critic, ref on models(engine=transformers)\n"
    if host > 1:
        lines += f"pool host = {host} cpus\n"
    os.chdir(folder)
    watch = Watch()
    cluster.Worker = MadeUp
    text = PROGRAM.replace("ROWS", str(rows)).replace("TOKENS", str(tokens))
    made = rlgraph.compile(text, set={"base": folder}, schedule=lines)
    made.run(steps, threads=1, progress=False, on_event=watch, backend="ray")
    spent = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))}
    hosts = [of for process, of in spent.items() if process.startswith("host")]
    return {
        "rows": rows,
        "tokens": tokens,
        "host": host,
        "step_s": watch.ends[-1] - watch.ends[-2],
        "adv_s": min(seconds for _, name, seconds in watch.works if name == "adv"),
        "math_s": max(of.get("tensor adv", 0.0) for of in hosts) / steps,
        "taking_s": max(of["taking in"] for of in hosts) / steps,
        "packing_s": max(of.get("packing", 0.0) for process, of in spent.items() if process[:4] != "host") / steps,
        "received_mb": sum(of["received bytes"] for of in hosts) / steps / 1e6,
        "spent": spent,
        "works": watch.works,
    }


if __name__ == "__main__":
    print(json.dumps(between(*map(int, sys.argv[1:]))))
