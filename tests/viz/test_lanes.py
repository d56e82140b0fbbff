"""The picture of a plan: it says what `compile` prints, everything has its place, and nothing is over anything else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pydot
import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.api.summary import summary_text
from rlgraph.api.target import workload
from rlgraph.cli import run_command
from rlgraph.explain.lanes import plan_lanes
from rlgraph.ops import NODES
from rlgraph.passes.resharding.group_edges import group_edges
from rlgraph.viz import lanes_svg
from rlgraph.viz.fonts import text_width_bound
from rlgraph.viz.lanes import LaneEdge, LanePhase, Lanes, LaneWork
from rlgraph.viz.lanes_layout import LanesDrawing, edge_label, lay_out_lanes
from rlgraph.viz.theme import LABEL
from tests.viz.test_outputs import size, svg_size

pytestmark = pytest.mark.usefixtures("slow_rows")

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
JUDGE = '"Skywork/Skywork-Reward-V2-Qwen3-8B"'
SETTINGS = {"safe_rlhf": {"helpful": JUDGE, "harmful": JUDGE}}
PHASES = """\
algorithm phases
model actor  = causal_lm("Qwen/Qwen2.5-0.5B-Instruct")
model ref    = frozen(actor)
data pairs   = jsonl("pairs.jsonl", batch=64)
data prompts = jsonl("prompts.jsonl", batch=64)
phase warmup(steps=100):
    answer = encode(pairs.prompt, pairs.answer)
    train actor(lr=1e-5):
        minimize -mean(actor.logprobs(answer))
step async(lag=1):
    rollout = actor.generate(prompts, n=8, max_tokens=256)
    adv     = center(rollout.length, prompts)
    kl      = k3(rollout.logprobs, ref.logprobs(rollout))
    train actor(lr=1e-6):
        ratio = exp(actor.logprobs(rollout) - rollout.logprobs)
        minimize mean(kl) - mean(ratio * adv)
    every 20:
        update ref from actor
        trial = actor.generate(prompts, max_tokens=256)
        report length = mean(trial.length)
    report kl = mean(kl)
schedule:
    pool learn = 4 devices
    pool play  = 2 devices
    pool judge = 1 devices
    place actor.train on learn(engine=megatron, tp=2)
    place actor.generate on play(engine=vllm)
    place ref on judge
"""
MANY = """\
schedule safe_rlhf
pool a = 8 devices
pool b = 4 devices
pool c = 4 devices
pool d = 2 devices
pool e = 2 devices
place actor.train on a(engine=megatron, tp=4)
place actor.generate on b(engine=vllm, tp=2)
place v_gain on c(engine=megatron, tp=2)
place v_cost on c(engine=megatron, tp=4)
place ref on d
place reward on e(engine=megatron)
place cost on d(engine=megatron)
"""
CLUSTER = "2x8:a100-80gb"


@cache
def compiled(name: str) -> Compiled:
    """An algorithm on simple defaults, or a case of its own."""
    if name == "phases":
        return rlgraph.compile(PHASES)
    if name == "many pools":
        return rlgraph.compile(ALGORITHMS / "safe_rlhf.rlf", SETTINGS["safe_rlhf"], schedule=MANY)
    if name == "schedule":
        return rlgraph.compile(ALGORITHMS / "ppo.rlf", schedule=ALGORITHMS / "ppo.rls")
    if name == "cluster":
        return chosen()
    return rlgraph.compile(ALGORITHMS / f"{name}.rlf", devices=8)


@cache
def chosen() -> Compiled:
    """With answers so long that it generates on another split than it trains on, and weights travel."""
    lengths = workload("512", "mean=256,p99=512")
    return rlgraph.compile(ALGORITHMS / "ppo.rlf", cluster=CLUSTER, workload=lengths, offload=False, stream=False)


CASES = [*sorted(path.stem for path in ALGORITHMS.glob("*.rlf")), "phases", "many pools", "schedule", "cluster"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Compiled:
    return compiled(request.param)


# What it says


def test_every_work_stands_in_the_lane_where_it_runs(case: Compiled) -> None:
    picture, plan = plan_lanes(case), case.plan
    assert [lane.name for lane in picture.lanes] == [pool.name for pool in plan.pools]
    of_models = {(role.model, role.operation): plan.group(role.group).pool for role in plan.roles}
    texts: dict[str, list[LaneWork]] = {}
    for work in picture.all_works():
        texts.setdefault(work.text.split("\n")[0], []).append(work)
    shown = "\n".join(texts)
    for phase in case.program.phases:
        for node in phase.graph.nodes:
            if NODES[node.op].uses_model and not NODES[node.op].loop:
                assert node.name in shown, node.name
    for work in picture.all_works():
        found = next((role for role in of_models if work.note.startswith(f"{role[0]}.{role[1]}")), None)
        if work.title.startswith("train "):
            found = (work.title.split()[1], "train")
        if found:
            assert picture.lanes[work.lane].name == of_models[found]


def test_it_has_every_value_that_travels_once(case: Compiled) -> None:
    picture, plan = plan_lanes(case), case.plan
    drawn = [(name, way) for stage in picture.stages for way in stage.ways for name in way.names]
    # How many rows there are is counted beside the tables, and is no value of its own.
    phases = [replace(case.program, phases=(phase,)) for phase in case.program.phases]
    edges = [edge for phase in phases for edge in group_edges(phase, plan)]
    sent = [edge.value for edge in edges if not edge.value.endswith(".size")]
    assert sorted(name for name, _ in drawn) == sorted(sent)
    listed = case.transfers()
    for name, way in drawn:
        assert way.sizes
        if len(way.names) == 1:
            # Phases may have different tables of one name.
            lines = [line for line in listed.splitlines() if line.split()[:1] == [name]]
            assert any(line.endswith(", ".join(way.sizes)) for line in lines)


def test_its_figures_are_those_of_compile() -> None:
    found = chosen()
    picture, printed = plan_lanes(found), summary_text(found)
    assert picture.notes[0] in printed
    for lane in picture.lanes[1:]:
        devices = lane.note.split(",")[0]
        assert f"{devices} in `{lane.name}`: {lane.memory[0]}" in printed
        for each in lane.deployed:
            row = rf"^  {re.escape(each.title.replace('.train', ''))} +{re.escape(each.seconds)}  {each.how[0].split(',')[0]}, "
            assert re.search(row, printed, re.MULTILINE), (each, printed)
    works = {work.title: work for work in picture.all_works()}
    assert works["train actor"].seconds == next(
        each.seconds for lane in picture.lanes for each in lane.deployed if each.title == "actor.train"
    )
    weights = works["weights of actor"].note
    assert f"{weights.split(',')[0]} between devices" in found.transfers()
    assert f"{weights.split(', ')[1]} predicted" in found.transfers()


@pytest.mark.parametrize(("dtype", "told"), [("", ""), (', dtype="bfloat16"', "30.5 GB")])
def test_without_a_cluster_nothing_is_drawn_that_nobody_said(dtype: str, told: str) -> None:
    """No seconds, which need a device, and no bytes, which need a dtype."""
    source = (ALGORITHMS / "grpo.rlf").read_text().replace("causal_lm(base)", f"causal_lm(base{dtype})")
    schedule = """schedule grpo
pool learn = 4 devices
pool play = 4 devices
place actor.train, ref on learn(engine=megatron, tp=2, pp=2)
place actor.generate on play(engine=vllm, tp=2)
"""
    found = rlgraph.compile(source, schedule=schedule)
    picture = found.lanes()
    assert [work.note for work in picture.all_works() if work.title == "weights of actor"] == [told]
    assert not any(work.seconds for work in picture.all_works()) and not any(lane.memory for lane in picture.lanes)
    listed = found.transfers()
    assert "predicted" not in listed
    assert ("bytes are counted in float32: the program says no `dtype` of `actor`" in listed) == (not dtype)


def test_a_plan_file_has_the_picture_of_what_wrote_it(tmp_path: Path) -> None:
    found = chosen()
    (tmp_path / "ppo.plan.json").write_text(found.plan_json(tmp_path))
    again = rlgraph.load_plan(tmp_path / "ppo.plan.json")
    assert again.to_svg() == found.to_svg()


def test_drawing_a_plan_file_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "ppo.plan.json").write_text(chosen().plan_json(tmp_path))
    code = f"import sys, rlgraph; rlgraph.load_plan({str(tmp_path / 'ppo.plan.json')!r}).to_html(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_seconds_that_cannot_be_known_again_are_left_out(tmp_path: Path) -> None:
    """The constants were another machine's: the file has the step's seconds, and not those of its parts."""
    document = json.loads(chosen().plan_json(tmp_path))
    document["assumptions"]["constants"] = "another machine"
    (tmp_path / "ppo.plan.json").write_text(json.dumps(document))
    picture = plan_lanes(rlgraph.load_plan(tmp_path / "ppo.plan.json"))
    assert "a step" in picture.notes[0] and not any(work.seconds for work in picture.all_works())


def test_work_that_needs_chosen_rows_is_below_what_chooses_them() -> None:
    found = lay_out_lanes(plan_lanes(compiled("online_dpo")))
    tops = {work.title: where[1] for work, where in found.works}
    assert tops["best"] < tops["ref.logprobs"] and tops["worst"] < tops["ref.logprobs.2"]


def test_off_loaded_models_are_told() -> None:
    found = rlgraph.compile(ALGORITHMS / "ppo.rlf", cluster="1x8:a100-40gb")
    assert any(each.offload for each in found.plan.holdings)
    assert any("off-loaded" in line for lane in plan_lanes(found).lanes for each in lane.deployed for line in each.how)


# Where it is


def over(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether two rectangles (x, y, width, height) have anything in common."""
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def labels(d: LanesDrawing) -> list[tuple[float, float, float, float]]:
    found = []
    for path in d.paths:
        if path.label:
            lines = [line for lines in edge_label(path.way) for line in lines]
            wide = max(text_width_bound(line, LABEL.face, LABEL.size) for line in lines)
            found.append((path.label[0] - wide / 2, path.label[1], wide, len(lines) * LABEL.height))
    return found


def crowded() -> Lanes:
    """Every work of six lanes sends something to every later one of another lane."""
    picture = compiled("many pools").lanes()
    works = tuple(LaneWork(f"x{at}", at % 6, f"work {at}", "a note", seconds="1.23 s", share=0.4) for at in range(18))
    ways = tuple(
        LaneEdge(a.id, b.id, a.lane, (f"value{a.id}",), ("12 bytes a token", "9 bytes a row"))
        for a, b in combinations(works, 2)
        if a.lane != b.lane
    )
    return Lanes("crowded", ("a note",), picture.lanes, (LanePhase("step", "", works, ways),))


@pytest.mark.parametrize("name", [*CASES, "crowded"])
def test_nothing_is_over_anything_else(name: str) -> None:
    d = lay_out_lanes(crowded() if name == "crowded" else compiled(name).lanes())
    boxes = [where for _, where in d.works]
    for a, b in combinations([*boxes, *labels(d)], 2):
        assert not over(a, b), (a, b)
    for work, box in d.works:
        x, _, wide, tall = d.lanes[work.lane]
        assert x <= box[0] and box[0] + box[2] <= x + wide and d.head <= box[1] and box[1] + box[3] <= d.top + tall
    for path in d.paths:
        for (x, y), (end_x, end_y) in zip(path.points, path.points[1:], strict=False):
            piece = (min(x, end_x), min(y, end_y), abs(end_x - x) + 0.01, abs(end_y - y) + 0.01)
            assert y <= end_y, "a line goes down"
            for other, box in d.works:
                inner = (box[0] + 1, box[1] + 1, box[2] - 2, box[3] - 2)
                assert not over(piece, inner), (path.way, other.title)
            for label in labels(d):
                assert not over(piece, (label[0], label[1] + 1, label[2], label[3] - 1)), (path.way, label)
    assert d.width >= max(x + wide for x, _, wide, _ in d.lanes)


# How one asks for it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_draws_the_plan_where_there_is_one(folder: Path) -> None:
    ppo, rls = str(ALGORITHMS / "ppo.rlf"), str(ALGORITHMS / "ppo.rls")
    for ending in ("svg", "html"):
        assert not run_command(["compile", ppo, "--visualize", f"plain.{ending}"])
        assert not run_command(["compile", ppo, rls, "--visualize", f"plan.{ending}"])
        assert not run_command(["compile", ppo, rls, "--visualize", f"flow.{ending}", "--picture", "dataflow"])
        assert not run_command(["compile", ppo, "--visualize", f"all.{ending}", "--picture", "plan"])
        data = {name: (folder / f"{name}.{ending}").read_bytes() for name in ("plain", "plan", "flow", "all")}
        assert len({data["plan"], data["plain"], data["all"]}) == 3
        assert (data["flow"] == data["plain"]) == (ending == "svg")
    assert not run_command(["compile", ppo, rls, "--emit", "png", "--emit", "dot", "-o", "."])
    assert size((folder / "ppo.png").read_bytes()) == tuple(
        2 * side for side in svg_size((folder / "plan.svg").read_text())
    )
    assert "cluster_lane0" in (folder / "ppo.dot").read_text()
    for name in ("plan", "all"):
        assert "actor.generate" in (folder / f"{name}.svg").read_text()
    page = (folder / "plan.html").read_text()
    assert "<option>plan</option><option>dataflow</option>" in page
    assert "<option>dataflow</option><option>plan</option>" in (folder / "flow.html").read_text()
    assert "<option>plan</option>" not in (folder / "plain.html").read_text()


def test_where_nothing_fits_the_errors_are_all_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = str(ALGORITHMS / "sft.rlf")
    assert run_command(["compile", program, "--cluster", "1x1:l4(memory=4GiB)", "--visualize", "plan.svg"]) == 1
    assert "E0930" in capsys.readouterr().err and not (folder / "plan.svg").exists()


def test_python_and_notebooks_have_it() -> None:
    found = compiled("schedule")
    assert found.planned and not compiled("grpo").planned
    assert found.to_svg() == found.to_svg(picture="plan") != found.to_svg(picture="dataflow")
    assert "weights of actor" in found._repr_mimebundle_()["image/svg+xml"]
    assert "weights of actor" not in found._shown("dataflow")["image/svg+xml"]


def test_dot_has_a_cluster_for_each_lane() -> None:
    found = compiled("phases")
    graphs = pydot.graph_from_dot_data(found.to_dot())
    assert graphs
    clusters = graphs[0].get_subgraphs()
    assert len(clusters) == len(found.plan.pools)
    nodes = {node.get_name() for cluster in clusters for node in cluster.get_nodes()}
    assert {work.id for work in found.lanes().all_works()} <= nodes
    assert len(graphs[0].get_edges()) == sum(len(stage.ways) for stage in found.lanes().stages)


def test_signs_are_escaped() -> None:
    work = LaneWork("w1", 0, "<b>&", kind="tensor", text='"</title><script>')
    picture = Lanes("<i>", ("a & b",), compiled("schedule").lanes().lanes, (LanePhase("step", "", (work,), ()),))
    svg = lanes_svg.to_svg(picture)
    assert "<script>" not in svg and "<b>" not in svg and "&lt;b&gt;&amp;" in svg
