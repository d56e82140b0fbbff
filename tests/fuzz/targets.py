"""What reads texts that anybody may have written: for each kind good ones to begin with, and what has to survive."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from textwrap import dedent
from zlib import crc32

import rlgraph
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.data.sources import open_source
from rlgraph.dsl.check import Checked, check_program_and_schedule
from rlgraph.dsl.format import format_source
from rlgraph.errors import NO_SPAN, ProgramError, Source
from rlgraph.explain.transfers import transfers_text
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.compilation.compile import check_program, compile_program
from rlgraph.passes.compilation.read_program import OpenedProgram, decode_source
from rlgraph.passes.compilation.schedule_files import with_schedule
from rlgraph.passes.cost.calibration import HeldOutErrors
from rlgraph.passes.cost.lengths import parse_lengths
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.lengths import read_fitted_lengths
from rlgraph.user_code.spec import CallSpec
from tests.documents import examples, program
from tests.dsl.mutants import PAIR, PROGRAMS, RICH
from tests.fuzz import tables

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
ROOT = Path(__file__).parents[2]
NARROW = RICH.replace('dtype="float64"', 'dtype="float32"')
"""With models that all engines can hold."""
PPO = ALGORITHMS / "ppo.rlf"


@dataclass(frozen=True)
class Target:
    """A kind of text."""

    name: str
    ending: str
    good: Callable[[], Sequence[bytes]]
    """Texts that are right, from which others are made."""
    read: Callable[[bytes, Path], object]
    """Reads a text and does with it what a user would; the folder is there for a file. Raises RlgraphError for a wrong
    one."""
    share: int = 10
    """How many of its texts are in a round."""
    make: Callable[[Random], bytes] | None = None
    """Makes a text, where accidents in good ones would seldom be of the right sort."""


# Programs and schedules


def _program(raw: bytes, folder: Path) -> object:
    opened = OpenedProgram(decode_source("a.rlf", raw), folder)
    found = check_program_and_schedule(opened.source)
    for warning in found.warnings:
        warning.render()
    if crc32(raw) % COMPILED:
        return None
    made = compile_program(opened, {}, found)
    for stage in made.stages:
        assert parse_program(program_text(stage.program)) == stage.program, stage.name
    once = format_source(opened.source)
    assert format_source(Source("a.rlf", once)) == once
    return made.plan


COMPILED = 5
"""Of programs that are right one in so many is compiled and laid out, which takes ten times as long as to check one."""


@cache
def _programs() -> list[bytes]:
    """Those that ship, those with all that there is, and the examples of the documents, which are short: an accident in
    one is seldom hidden behind another."""
    short = [program(example) for example in examples() if "error" not in example.words]
    return [text.encode() for text in (*PROGRAMS, NARROW, *short)]


@cache
def _bases() -> dict[str, tuple[OpenedProgram, Checked]]:
    """Programs without a schedule, by their names."""
    files = [*ALGORITHMS.glob("*.rlf"), *(ROOT / "benchmarks" / "asynchrony").glob("*.rlf")]
    texts = [path.read_text("utf-8") for path in sorted(files)]
    texts += [PAIR, NARROW.partition("schedule:")[0]]
    opened = [OpenedProgram(Source("a.rlf", text), ALGORITHMS) for text in texts]
    found = [(each, check_program(each, {})) for each in opened]
    return {base.program.name: (each, base) for each, base in found}


def _schedule(raw: bytes, folder: Path) -> object:
    source = decode_source("a.rls", raw)
    name = re.search(r"^schedule (\w+)", source.text, re.MULTILINE)
    opened, base = _bases().get(name[1] if name else "") or _bases()["ppo"]
    found = with_schedule(base, OpenedProgram(source, folder))
    return compile_program(opened, {}, found, devices=4).plan


@cache
def _schedules() -> list[bytes]:
    rich = "schedule rich\n" + dedent(NARROW.partition("schedule:\n")[2])
    places = [*ALGORITHMS.glob("*.rls"), *(ROOT / "benchmarks" / "asynchrony").glob("*.rls")]
    return [rich.encode(), *(path.read_bytes() for path in sorted(places))]


# Clusters


def _cluster(raw: bytes, folder: Path) -> object:
    found = read_cluster(decode_source("--cluster", raw).text)
    assert read_cluster(found.text) == found
    return found


def _cluster_file(raw: bytes, folder: Path) -> object:
    path = folder / "cluster.toml"
    path.write_bytes(raw)
    found = read_cluster(str(path))
    assert read_cluster(found.text) == found
    return found


CLUSTERS = (
    "4x8:h100-80gb",
    "16x8:a100-80gb@25GB/s",
    "2x8:h100-80gb@200Gb/s/node + 4x8:a100-40gb ~ 10Gb/s, 5ms",
    "1x2:cpu",
    "4x8:h100-80gb(memory=40GiB, price=2.5)",
)
CLUSTER_FILES = (
    """between = "10Gb/s"
between_latency = "5ms"

[[island]]
nodes = 4
per_node = 8
device = "my-gpu"
network = "200Gb/s/node"

[[island]]
nodes = 1
per_node = 2
device = "a100-80gb"

[device.my-gpu]
memory = "64GiB"
float32 = 1e14
bfloat16 = "400TFLOP/s"
bandwidth = 2e12
link = "200GB/s"
network = "25GB/s"
host = "50GB/s"
link_latency = "3us"
network_latency = "10us"
price = 2
""",
    '[[island]]\nnodes = 2\nper_node = 8\ndevice = "h100-80gb"\n[device.h100-80gb]\nmemory = "70GiB"\nprice = 1.5\n',
)


# Plan files


def _plan(raw: bytes, folder: Path) -> object:
    path = folder / "plan.json"
    path.write_bytes(raw)
    made = rlgraph.load_plan(path)
    str(made)
    made.plan_json(folder)
    if made.plan.cluster:
        rlgraph.simulate(made)
    return made.lanes()


@cache
def _plans() -> list[bytes]:
    made = [rlgraph.compile(path, devices=4) for path in sorted(ALGORITHMS.glob("*.rlf"))]
    made.append(rlgraph.compile(PPO, schedule=PPO.with_suffix(".rls")))
    small = {"actor": 'causal_lm("Qwen/Qwen2.5-0.5B-Instruct")'}
    made.append(rlgraph.compile(ALGORITHMS / "grpo.rlf", set=small, cluster="1x2:h100-80gb"))
    return [each.plan_json().encode() for each in made]


# What was measured


def _calibration(raw: bytes, folder: Path) -> object:
    path = folder / "calibration.json"
    path.write_bytes(raw)
    found = read_calibration(path)
    again = folder / "again.json"
    again.write_text(found.to_text(), "utf-8")
    read_calibration(again)
    return found.with_measured_rates(read_cluster("1x2:cpu"))


@cache
def _calibrations() -> list[bytes]:
    from tests.passes.cost.test_calibration import calibration

    held = replace(calibration(), held_out={"transformers.train": HeldOutErrors(0.1, 0.3)})
    return [calibration().to_text().encode(), held.to_text().encode()]


def _lengths(raw: bytes, folder: Path) -> object:
    found = parse_lengths(decode_source("--prompt-tokens", raw).text, files=False)
    assert parse_lengths(found.to_text()).mean == found.mean or not found.mean
    return found


def _lengths_file(raw: bytes, folder: Path) -> object:
    path = folder / "lengths.txt"
    path.write_bytes(raw)
    try:
        return parse_lengths(str(path))
    except ProgramError:
        return read_fitted_lengths(path)


LENGTHS = ("1024", "mean=350, p99=1500", "p50=300,p99=1500", "[1, 2, 3.5, 10]", "mean=3,p99.9=10", "p1=10, p50=100")
LENGTH_FILES = (
    "12\n15\n\n1024\n",
    "[3, 5, 900]",
    json.dumps(
        {
            "rlgraph_lengths": 1,
            "source": "runs/grpo-1",
            "prompts": {"rows": 4, "cut": 0, "values": [31, 35.2, 40, 90]},
            "answers": {"rows": 8, "cut": 3, "values": [58, 71.5, 80]},
        }
    ),
)


# What others made


def _rows(raw: bytes, folder: Path) -> object:
    path = folder / "rows.jsonl"
    path.write_bytes(raw)
    program = 'algorithm a\nmodel actor = causal_lm("m")\ndata rows = jsonl("rows.jsonl", batch=2)\n'
    program += "step:\n    a = actor.generate(rows, max_tokens=2)\n    report x = mean(a.length == rows.answer)\n"
    opened = OpenedProgram(Source("a.rlf", program), folder)
    check_program(opened, {})
    spec = CallSpec("jsonl", ("rows.jsonl",), {"batch": 1}, NO_SPAN)
    source = open_source(spec, opened.search_folders)
    return [source.rows[number] for number in range(len(source.rows))]  # type: ignore[index, arg-type]


ROWS = ('{"prompt": "a", "answer": 1}\n{"prompt": [{"role": "user", "content": "b"}], "answer": 2.5}\n',)


def _config(raw: bytes, folder: Path) -> object:
    """Of a model's folder, in which one file says what it is: its shape, and an adapter."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    for file in model.iterdir():
        file.unlink()
    named = "adapter_config.json" if b"peft_type" in raw else "tokenizer.json" if b'vocab"' in raw else "config.json"
    (model / named).write_bytes(raw)
    source = 'random("qwen2", tokenizer="model")' if named == "tokenizer.json" else '"model"'
    program = f"algorithm a\nmodel actor = causal_lm({source})\n" + LEARNS
    found = check_program(OpenedProgram(Source("a.rlf", program), folder), {})
    made = compile_program(OpenedProgram(Source("a.rlf", program), folder), {}, found, devices=4)
    return transfers_text(made.program, made.placed)


LEARNS = """data rows = jsonl("rows.jsonl", batch=2)
step:
    a = actor.generate(rows, max_tokens=2)
    train actor(lr=1e-3):
        minimize mean(actor.logprobs(a))

schedule:
    pool all = 4 devices
    place actor.train on all(pp=2, tp=2)
    place actor.generate on all
"""


@cache
def _configs() -> list[bytes]:
    from rlgraph.catalog.models.configs import find_config, known_models

    found = [dict(find_config(name) or {}) for name in known_models()[::4]]
    found.append(
        {"peft_type": "LORA", "base_model_name_or_path": "b", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    )
    found.append({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<eos>"}]})
    return [json.dumps(each, indent=1).encode() for each in found]


def _encoded(texts: Sequence[str]) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


TARGETS = (
    Target("programs", ".rlf", _programs, _program, share=100),
    Target("schedules", ".rls", _schedules, _schedule),
    Target("clusters", ".txt", _encoded(CLUSTERS), _cluster),
    Target("cluster-files", ".toml", _encoded(CLUSTER_FILES), _cluster_file),
    Target("plans", ".json", _plans, _plan),
    Target("calibrations", ".json", _calibrations, _calibration),
    Target("lengths", ".txt", _encoded(LENGTHS), _lengths),
    Target("lengths-files", ".json", _encoded(LENGTH_FILES), _lengths_file),
    Target("configs", ".json", _configs, _config, share=1),
    Target("rows", ".jsonl", _encoded(ROWS), _rows, share=2),
    Target("tables", ".jsonl", lambda: tables.GOOD, tables.check_table, make=tables.table),
    Target("table-runs", ".jsonl", lambda: tables.GOOD, tables.run_table, make=tables.table),
    Target("table-prompts", ".jsonl", lambda: tables.ASKING, tables.ask_table, share=1, make=tables.asking),
)
