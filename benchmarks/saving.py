"""What it costs to save a run: steps while a checkpoint is written, beside steps of the same length while none is.

    python benchmarks/saving.py
    python benchmarks/saving.py --rounds 20 --hidden 512 --json saving.json

One run, in this process: a model samples and is trained. After a step nothing is saved, or a checkpoint is begun, which
is written beside the next step, or one is written while the run waits; the three take turns, in another order each
round, so that whatever else the machine does hits all of them alike. Seconds are counted from the end of one step to
the end of the next, and medians of the rounds are shown.

    weights, files      MB of the weights, and of all files of a checkpoint: with AdamW's moments three times as much
    step                seconds of a step while nothing is written
    beside              how much longer one takes while a checkpoint is written beside it, in percent: the median of the
                        rounds, and between which it is in half of them
    waits               the same while the run waits until it is written
    cores               seconds of a core that writing one takes, in percent of those that a step takes: what it costs
                        where no core is free, whatever else a machine does
    held                seconds in which the run did nothing but wait for a checkpoint that is written beside: until it
                        was begun, and before the update
    written             seconds from its beginning to the name that it gets when it is complete, beside the step
    room                MB of tensors that were there beside the weights meanwhile, more than without, at most: counted
                        while one is written alone
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rlgraph.backends.engines.roles import EmbeddedEngine
    from rlgraph.backends.local.backend import LocalBackend
    from rlgraph.backends.worker.session import Session

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WAYS = ("nothing", "beside", "waits")
PROGRAM = """algorithm saving
model actor  = causal_lm(random("qwen2", hidden_size={hidden}, intermediate_size={inner}, num_hidden_layers={layers},
                                num_attention_heads=8, num_key_value_heads=8, initializer_range=0.02,
                                max_position_embeddings=256, tokenizer=bytes()))
data prompts = jsonl("prompts.jsonl", batch={rows}, shuffle=false)
step:
    rollout = actor.generate(prompts, n=2, max_tokens={tokens})
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * center(rollout.length, prompts))
    report length = mean(rollout.length)
"""


def measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    import rlgraph
    from rlgraph.backends.local.backend import LocalBackend
    from rlgraph.runs.backends import open_backend
    from rlgraph.runs.checkpoint import disk
    from rlgraph.runs.checkpoint.outside_digests import file_digests
    from rlgraph.runs.checkpoint.saving import Saver
    from rlgraph.runs.folder import RunFolder
    from rlgraph.runs.observer import InterruptHandler, RunObserver
    from rlgraph.runs.options import RunOptions
    from rlgraph.runs.progress import QuietDisplay
    from tests.passes.cost.live import Live

    torch.set_num_threads(1)
    (folder / "prompts.jsonl").write_text('{"prompt": "what is it?"}\n' * given.rows)
    (folder / "saving.rlf").write_text(
        PROGRAM.format(
            hidden=given.hidden, inner=4 * given.hidden, layers=given.layers, rows=given.rows, tokens=given.tokens
        )
    )
    compiled = rlgraph.compile(folder / "saving.rlf")
    options = RunOptions(threads=1, device="cpu", save_every="1000000", keep=1)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cores: list[float] = []
    written: list[float] = []
    held: list[float] = []
    saving: list[float] = []
    source = random.Random(given.seed)
    # The first step makes what the optimizer keeps.
    turns = [*["nothing"] * 2, *(way for _ in range(given.rounds) for way in source.sample(WAYS, len(WAYS)))]
    saved = RunFolder.claim_folder(folder / "run")
    with open_backend(compiled, options, RunObserver(QuietDisplay(), InterruptHandler(QuietDisplay()))) as (
        backend,
        models,
    ):
        assert isinstance(backend, LocalBackend)
        saver = Saver(saved, compiled, options, file_digests(compiled), backend)
        steps = backend.run_steps(len(turns) + 1)
        next(steps)
        gate = _Gate(backend.session)
        for number, way in enumerate(turns):
            began, worked, clock = time.perf_counter(), time.process_time(), time.time()
            gate.seconds = 0.0
            if way == "beside":
                saver.start_saving()
                held.append(time.perf_counter() - began)
            elif way == "waits":
                saver.save()
                saving.append(time.process_time() - worked)
            next(steps)
            taken = time.perf_counter() - began
            worked = time.process_time() - worked
            if way == "beside":
                saver.wait_until_written()
                held[-1] += gate.seconds
                # Its name is the last thing that changes it.
                written.append((saver.checkpoints_folder / disk.LATEST).stat().st_mtime - clock)
            if number >= 2:
                seconds[way].append(taken)
                cores += [worked] * (way == "nothing")
            told = f"{taken:.2f} s, {worked:.2f} s of a core"
            print(f"step {number + 1}/{len(turns)}: {way}, {told}", file=sys.stderr, flush=True)
        tensors = models["actor"].engine.tensors()
        weights = sum(each.numel() * each.element_size() for each in tensors.values())
        room = _room(backend, folder / "alone", Live)
    saved.close()
    newest = disk.newest_checkpoint(saver.checkpoints_folder)
    assert newest is not None
    size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return {
        "weights_mb": weights / 1e6,
        "files_mb": size / 1e6,
        "step_seconds": statistics.median(seconds["nothing"]),
        **{f"{way}_percent": _more(seconds[way], seconds["nothing"]) for way in ("beside", "waits")},
        "cores_percent": 100 * statistics.median(saving) / statistics.median(cores),
        "held_seconds": statistics.median(held),
        "written_seconds": statistics.median(written),
        "room_mb": room / 1e6,
        "seconds": seconds,
        "core_seconds": {"nothing": cores, "saving": saving},
        "rounds": given.rounds,
    }


class _Gate:
    """Counts how long updates wait before they change a model."""

    def __init__(self, session: Session) -> None:
        self.seconds = 0.0
        self._changing = session.prepare_weight_change
        session.prepare_weight_change = self.changing

    def changing(self, *args: Any) -> None:
        began = time.perf_counter()
        self._changing(*args)
        self.seconds += time.perf_counter() - began


def _room(backend: LocalBackend, place: Path, live: Any) -> int:
    """Bytes of tensors that are made while the model is written."""
    engine = cast("EmbeddedEngine", backend.session.models["actor"].engine)
    known = [
        *engine.tensors().values(),
        *(x for each in engine.moments().tensors_by_kind.values() for x in each.values()),
    ]
    kept = backend.hold_weights("actor")
    assert kept is not None
    with live(known) as counted:
        kept.begin_writing(place)
        kept.wait_written()
    peak: int = counted.peak
    return peak


def _more(some: list[float], others: list[float]) -> tuple[float, float, float]:
    """Quartiles of how much longer some take than others of the same round, in percent; the median first."""
    low, middle, high = statistics.quantiles([100 * (a / b - 1) for a, b in zip(some, others, strict=True)], n=4)
    return middle, low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="in each of which all three are done once")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16, help="prompts of a step; each is sampled twice")
    parser.add_argument("--tokens", type=int, default=48, help="of a sample, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(given, Path(folder))
    (beside, *beside_between), (waits, *waits_between) = found["beside_percent"], found["waits_percent"]
    between = "{:+.1f} to {:+.1f}".format
    print(f"weights {found['weights_mb']:.0f} MB, files {found['files_mb']:.0f} MB; {given.rounds} rounds")
    print(f"step    {found['step_seconds']:.2f} s")
    print(f"beside  {beside:+.1f} % ({between(*beside_between)})")
    print(f"waits   {waits:+.1f} % ({between(*waits_between)})")
    print(f"cores   {found['cores_percent']:+.1f} %")
    print(f"held    {found['held_seconds']:.3f} s")
    print(f"written {found['written_seconds']:.2f} s")
    print(f"room    {found['room_mb']:.3f} MB")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
