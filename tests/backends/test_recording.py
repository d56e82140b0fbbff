"""Recordings: a run that is given what another one sampled is that run, however it is cut into pieces."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_exactness import PROGRAMS, close, same, sampled
from tiny import EPS, Run, Seen, compile_text, data_folder, shipped, weights

from rlgraph.backends.collect_batches import CollectBatch, Surplus
from rlgraph.backends.engines.base import Generation
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.frame import Frame
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.recording import HEADER, Recorder, Replay, claim_folder, read_header
from rlgraph.backends.recording_cleanup import drop_resampled_rows, drop_unfinished_steps
from rlgraph.backends.step import Step
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError, UsageMistake
from rlgraph.ir.graph import Node
from tests.suites import few

STEPS = 3
SAMPLING = [name for name in PROGRAMS if name not in ("sft", "reward_model", "dpo")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("recording"))


def run(
    name: str, folder: Path, steps: int = STEPS, wide: bool = True, changes: Any = (), **settings: Any
) -> list[Seen]:
    """`wide`: in float64."""
    swaps, given = PROGRAMS[name]
    given = {key: value if wide else value.replace("float64", "float32") for key, value in given.items()} | dict(
        changes
    )
    program = compile_text(shipped(name, swaps), given)
    if settings.get("record"):
        with claim_folder(settings["record"], program.name, settings.get("seed", 0)):
            return Run(program, folder, **settings).steps(steps)
    return Run(program, folder, **settings).steps(steps)


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Callable[[str], tuple[Path, list[Seen]]]:
    """A program's recording and its run, made once."""
    made: dict[str, tuple[Path, list[Seen]]] = {}

    def get(name: str) -> tuple[Path, list[Seen]]:
        if name not in made:
            made[name] = folder / f"{name}.recording", run(name, folder, record=folder / f"{name}.recording")
        return made[name]

    return get


def stop_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on an engine that is asked to sample fails."""

    def generate(*_: object) -> Generation:
        raise AssertionError("the engine samples in a replay")

    monkeypatch.setattr(TransformersEngine, "generate", generate)


@pytest.mark.parametrize("name", few(SAMPLING, "grpo", "agent", "dapo"))
def test_a_replay_is_the_run(folder: Path, name: str, recorded: Any, monkeypatch: Any) -> None:
    path, expected = recorded(name)
    stop_sampling(monkeypatch)
    same(run(name, folder, replay=path), expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    few(
        (
            (name, settings)
            for name in ("ppo", "agent")
            for settings in ({"micro_rows": 2}, {"block": 3}, {"threads": 3, "block": 1})
        ),
        ("ppo", {"block": 3}),
        ("agent", {"threads": 3, "block": 1}),
    ),
    ids=str,
)
def test_a_replay_in_other_pieces(
    folder: Path, name: str, settings: dict[str, int], recorded: Any, monkeypatch: Any
) -> None:
    path, expected = recorded(name)
    stop_sampling(monkeypatch)
    for found, seen in zip(run(name, folder, replay=path, **settings), expected, strict=True):
        assert sampled(found) == sampled(seen)
        close(found.metrics, seen.metrics)


@pytest.mark.parametrize("name", few(["grpo", "agent"], "grpo"))
def test_float32_and_small_blocks(folder: Path, name: str, tmp_path: Path) -> None:
    """Recorded row by row; log-probabilities come back with every bit."""
    expected = run(name, folder, wide=False, block=1, record=tmp_path / "r")
    same(run(name, folder, wide=False, block=1, replay=tmp_path / "r", record=tmp_path / "again"), expected)
    same(run(name, folder, wide=False, block=1, replay=tmp_path / "again"), expected)


def test_another_random_number_generator(folder: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlgraph.backends.engines.transformers import decode_block

    path, expected = recorded("grpo")
    draw = decode_block.draw_uniforms
    monkeypatch.setattr(decode_block, "draw_uniforms", lambda bits, place: draw(bits + 1, place))
    assert sampled(run("grpo", folder, steps=1)[0]) != sampled(expected[0])
    same(run("grpo", folder, replay=path), expected)


def test_samples_that_end_first_of_a_recording_of_all(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A recording of all samples has those that end first, too; one without those that are asked for says so."""
    swaps, given = PROGRAMS["distill"]
    text, seen = shipped("distill", swaps), dict[str, list[Seen]]()
    for first in (", first=3", "", ", first=4"):
        program = compile_text(text.replace(", first=3", first), given)
        if first == ", first=4":
            with pytest.raises(RunError, match="the recording has no `rollout` for prompts row"):
                Run(program, folder, replay=tmp_path / ", first=3").steps(1)
            break
        with claim_folder(tmp_path / (first or "all"), program.name, 0):
            seen[first] = Run(program, folder, record=tmp_path / (first or "all")).steps(1)
    stop_sampling(monkeypatch)
    program = compile_text(text, given)
    same(Run(program, folder, replay=tmp_path / "all").steps(1), seen[", first=3"])


def test_ages_come_out_of_the_recording(folder: Path, tmp_path: Path) -> None:
    """They are those of the weights that made the rows, whatever the replaying process would have sampled with."""
    swaps, given = PROGRAMS["async_grpo"]
    program = compile_text(shipped("async_grpo", {**swaps, "lag=2": "staleness=2"}), given)
    with claim_folder(tmp_path / "r", program.name, 0):
        assert [seen.metrics["age"] for seen in Run(program, folder, record=tmp_path / "r").steps(2)] == [0, 0]
    for file in (tmp_path / "r").glob("step-000002.*"):
        file.write_text(file.read_text().replace('"versions": [[1, ', '"versions": [[0, '))
    assert [seen.metrics["age"] for seen in Run(program, folder, replay=tmp_path / "r").steps(2)] == [0, 1]


# The rows themselves

NODE = Node("generate", (), (), (("key", "rollout"),))


def generation(rows: list[tuple[list[int], list[int]]], logprobs: torch.Tensor) -> Generation:
    """Of pairs of prompts and responses."""
    finished = torch.tensor([len(response) % 2 == 0 for _, response in rows], dtype=torch.bool)
    return Generation(Sequences.from_pairs([p for p, _ in rows], [r for _, r in rows]), logprobs, finished)


def test_many_writers_and_many_readers(tmp_path: Path) -> None:
    count, share = 24, 6
    rows = [([1] * (at % 3), [at] * (at % 4)) for at in range(count)]
    # An empty prompt was asked, and the engine began with a token of its own.
    made = [(prompt or [7], response) for prompt, response in rows]
    ids = [("prompts", 0, at) for at in range(count)]
    chances = [torch.rand(len(response)) for _, response in rows]
    versions = [
        ((at, 1), (at + 1, 2)) if len(response) == 3 else ((at, len(response)),)
        for at, (_, response) in enumerate(rows)
    ]

    def write(step: int, first: int) -> None:
        part = slice(first, first + share)
        answer = generation(made[part], torch.cat(chances[part]) * step)
        asked = [prompt for prompt, _ in rows[part]]
        Recorder(tmp_path / "r").write_rows(NODE, Step(step, "step"), None, ids[part], asked, answer, versions[part])

    with claim_folder(tmp_path / "r", "grpo", 0), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: write(*job), [(step, first) for step in (1, 2) for first in range(0, count, share)]))
    replay = Replay(tmp_path / "r", "grpo", 0)
    for step in (2, 1):
        order = list(range(count))[::-1]
        found, runs = replay.read_rows(NODE, step, None, [ids[at] for at in order], [rows[at][0] for at in order])
        assert runs == versions[::-1]
        expected = generation([made[at] for at in order], torch.cat([chances[at] * step for at in order]))
        assert found.sequences.rows() == expected.sequences.rows()
        assert torch.equal(found.sequences.scored, expected.sequences.scored)
        assert torch.equal(found.logprobs.float(), expected.logprobs)
        assert torch.equal(found.finished, expected.finished)


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.booleans())
def test_every_number_comes_back(tmp_path_factory: pytest.TempPathFactory, numbers: list[float], wide: bool) -> None:
    path = tmp_path_factory.mktemp("numbers") / "r"
    wanted = torch.tensor(numbers, dtype=torch.float64 if wide else torch.float32)
    with claim_folder(path, "grpo", 0):
        made = generation([([3], [5] * len(numbers))], wanted)
        Recorder(path).write_rows(NODE, Step(1, "step"), 4, [("a", 0, 1)], [[3]], made, [((0, len(numbers)),)])
    found = Replay(path, "grpo", 0).read_rows(NODE, 1, 4, [("a", 0, 1)], [[3]])[0].logprobs.to(wanted.dtype)
    assert found.tolist() == wanted.tolist()
    assert [math.copysign(1, value) for value in found] == [math.copysign(1, value) for value in wanted]


def test_the_files_are_as_described(folder: Path, recorded: Any) -> None:
    path, seen = recorded("agent")
    header = json.loads((path / HEADER).read_text())
    assert (header["format"], header["program"], header["seed"]) == (2, "agent", 0)
    lines = [json.loads(line) for file in path.glob("step-000001.*.jsonl") for line in file.read_text().splitlines()]
    episode = next(table for table in seen[0].sampled if table.model == "actor")
    first = {line["turn"]: line for line in lines if tuple(line["row"]) == episode.ids[0] and line["node"] == "episode"}
    said = [token for turn in sorted(first) for token in first[turn]["tokens"]]
    assert said == [token for token, scored in zip(episode.tokens[0], episode.scored[0], strict=True) if scored]


# What is done again


AGAIN = f"""algorithm again
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=3)

step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    train actor(lr=0.05, eps={EPS}):
        minimize mean(exp(actor.logprobs(rollout) - rollout.logprobs))
    report length = mean(rollout.length)
"""


class Interrupts(SilentObserver):
    """Once, when a training is about to begin."""

    def __init__(self, count: int) -> None:
        self.count = count

    def node_started(self, node: Node, pool: str = "") -> None:
        self.count -= node.op == "train"
        if self.count == 0:
            self.count = -1
            raise KeyboardInterrupt


def lines(folder: Path, step: int) -> list[dict[str, Any]]:
    found = (file.read_text().splitlines() for file in folder.glob(f"step-{step:06d}.*.jsonl"))
    return [json.loads(line) for own in found for line in own]


def test_a_step_that_begins_again_is_recorded_once(folder: Path, tmp_path: Path) -> None:
    program = compile_text(AGAIN, {})
    with claim_folder(tmp_path / "r", program.name, 0):
        backend = LocalBackend(program, Settings(folder=folder, record=tmp_path / "r"), Interrupts(2))
        with pytest.raises(KeyboardInterrupt):
            list(backend.run_steps(3))
        # Who looks for what went wrong can replay it.
        assert len(lines(tmp_path / "r", 2)) == 6
        # The first one is over.
        found = list(backend.run_steps(2))
    assert [step.number for step in found] == [2, 3]
    for step in (1, 2, 3):
        rows = [tuple(line["row"]) for line in lines(tmp_path / "r", step)]
        assert len(rows) == len(set(rows)) == 6


def written(folder: Path, step: Step, who: str, rows: Sequence[int]) -> Recorder:
    recorder = Recorder(folder, who)
    made = generation([([3], [5]) for _ in rows], torch.zeros(len(rows)))
    ids = [("prompts", 0, row) for row in rows]
    recorder.write_rows(NODE, step, None, ids, [[3]] * len(rows), made, [((0, 1),)] * len(rows))
    return recorder


def rows_of(folder: Path, step: int) -> list[int]:
    return sorted(line["row"][2] for line in lines(folder, step))


def test_batches_that_begin_again_are_recorded_once(tmp_path: Path) -> None:
    """A step has left batches at work, which are of an earlier attempt: these have sampled nothing yet."""
    for batch, rows in ((0, [0, 1]), (1, [2, 3]), (2, [4])):
        written(tmp_path, Step(2, "step", batch=batch), "a-0", rows)
        written(tmp_path, Step(3, "step", batch=batch), "a-0", rows)
    # Some were written by the same process.
    one, other = sorted(tmp_path.glob("step-000002.*"))[:2]
    other.write_text(one.read_text() + other.read_text())
    one.unlink()
    going = [CollectBatch.restore(Frame({}, Step(2, "step", batch=batch))) for batch in (1, 2)]
    going[1].inputs.step = replace(going[1].inputs.step, attempt=1)
    whole = rows_of(tmp_path, 3)
    drop_unfinished_steps(tmp_path, 3, {"prompts.surplus": Surplus(None, tuple(going)), "level": 0.5}, 1)
    assert rows_of(tmp_path, 2) == [0, 1, 4] and rows_of(tmp_path, 3) == whole
    drop_unfinished_steps(tmp_path, 2, {}, 1)
    assert rows_of(tmp_path, 2) == [0, 1, 4] and not rows_of(tmp_path, 3)


def test_who_comes_late_records_nothing(tmp_path: Path) -> None:
    """Of what a step samples that has begun again."""
    recorder = written(tmp_path, Step(1, "step"), "a-0", [0])
    recorder.begin_retry(1)
    made = generation([([3], [5])], torch.zeros(1))
    for attempt in (0, 1):
        step = Step(1, "step", attempt=attempt)
        recorder.write_rows(NODE, step, None, [("prompts", 0, 1 + attempt)], [[3]], made, [((0, 1),)])
    assert rows_of(tmp_path, 1) == [0, 2]


def test_rows_of_who_is_lost_are_recorded_once(tmp_path: Path) -> None:
    """Others have done the rows of its last order; those before stay, and what it was writing is gone."""
    written(tmp_path, Step(1, "step"), "a-0", [0, 1, 2])
    written(tmp_path, Step(1, "step"), "a-1", [3])
    written(tmp_path, Step(1, "step"), "a-1", [1, 2])
    [own] = tmp_path.glob("step-000001.a-0-*")
    with own.open("a") as file:
        file.write('{"node": "rollout", "tu')
    drop_resampled_rows(tmp_path, 1, ["a-0", "b-0"])
    assert rows_of(tmp_path, 1) == [0, 1, 2, 3] and [line["row"][2] for line in map(json.loads, own.open())] == [0]
    drop_resampled_rows(tmp_path, 1, ["a-0"])
    assert rows_of(tmp_path, 1) == [0, 1, 2, 3]
    assert not [*tmp_path.glob(".*")]


# What is wrong


def test_more_samples_than_were_recorded(folder: Path, recorded: Any) -> None:
    path, _ = recorded("grpo")
    with pytest.raises(
        RunError, match=r"(?s)E0816.*no `rollout` for prompts row \d+, sample 4 in step 1.*seed was 0"
    ) as said:
        run("grpo", folder, replay=path, changes={"n": "5"})
    assert said.value.diagnostics[0].span.line
    with pytest.raises(RunError, match="its seed was 0, this run's is 3"):
        run("grpo", folder, replay=path, seed=3)


def test_more_steps_than_were_recorded(folder: Path, recorded: Any) -> None:
    path, _ = recorded("grpo")
    with pytest.raises(RunError, match=r"(?s)no step 4.*ends after step 3"):
        run("grpo", folder, replay=path, steps=4)


def test_other_prompts(folder: Path, recorded: Any, tmp_path: Path) -> None:
    path, _ = recorded("grpo")
    other = data_folder(tmp_path)
    rows = [json.loads(line) for line in (other / "gsm8k.jsonl").read_text().splitlines()]
    (other / "gsm8k.jsonl").write_text(
        "".join(json.dumps({**row, "prompt": row["prompt"] + "a"}) + "\n" for row in rows)
    )
    with pytest.raises(RunError, match=r"E0816.*prompts row \d+, sample 0 of step 1 was recorded with another prompt"):
        run("grpo", other, replay=path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"row"', '"line"'),
        lambda text: "\0" + text,
        lambda text: text.replace('"tokens": [', '"tokens": [1, '),
        lambda text: re.sub(r'"versions": \[\[1, ', '"versions": [[1, 1], [2, ', text),
        lambda text: re.sub(r'"versions": \[\[1, \d+\]\]', '"versions": []', text),
    ],
)
def test_a_damaged_file(folder: Path, tmp_path: Path, recorded: Any, damage: Callable[[str], str]) -> None:
    shutil.copytree(recorded("grpo")[0], tmp_path / "r")
    file = next((tmp_path / "r").glob("step-000002.*"))
    file.write_text(damage(file.read_text()))
    with pytest.raises(RunError, match=r"(?s)E0817.*line \d+ of `.*step-000002.*` is damaged.*before step 2"):
        run("grpo", folder, steps=2, replay=tmp_path / "r")
    assert len(run("grpo", folder, steps=1, replay=tmp_path / "r")) == 1


def test_folders_that_are_no_recording_of_this_program(folder: Path, recorded: Any, tmp_path: Path) -> None:
    path, _ = recorded("grpo")
    with pytest.raises(UsageMistake, match="E0815.*was recorded by `grpo`, and this program is `ppo`"):
        run("ppo", folder, replay=path)
    for wrong in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageMistake, match="E0815.*is no recording"):
            Replay(wrong, "grpo", 0)
    (tmp_path / HEADER).write_text(json.dumps({"format": 99, "program": "grpo", "seed": 0}))
    with pytest.raises(UsageMistake, match="E0815.*has format 99"):
        Replay(tmp_path, "grpo", 0)


def test_a_program_that_samples_nothing_has_a_recording_of_nothing(folder: Path, tmp_path: Path) -> None:
    """It is replayed as any other; so what runs many programs asks none whether it samples."""
    expected = run("sft", folder, record=tmp_path / "r")
    assert read_header(tmp_path / "r", "sft")["seed"] == 0
    same(run("sft", folder, replay=tmp_path / "r"), expected)


def test_folders_that_cannot_be_recorded_into(folder: Path, recorded: Any, tmp_path: Path) -> None:
    path, _ = recorded("grpo")
    before = sorted(path.iterdir())
    with pytest.raises(UsageMistake, match="E0814.*is not empty"), claim_folder(path, "grpo", 0):
        pass
    assert sorted(path.iterdir()) == before
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UsageMistake, match="E0814.*cannot hold a recording"),
        claim_folder(tmp_path / "file", "grpo", 0),
    ):
        pass
    # A run that did not begin leaves the folder as it was.
    with pytest.raises(RuntimeError), claim_folder(tmp_path / "r", "grpo", 0):
        raise RuntimeError
    assert not (tmp_path / "r").exists()
