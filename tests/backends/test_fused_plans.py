"""Trainings that a plan has in one pipeline: they are one piece of work, of as many seconds as its lists take, and of as
much memory as the micro-batches of all of them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from scheduled import apart, compiled
from test_exactness import PROGRAMS
from test_transport import STEPS, Here, HereBackend
from tiny import compile_text, data_folder, shipped

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.api.summary import summary_text
from rlgraph.backends.clocks import InlineClock, ThreadClock
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import NodeOutput
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.dispatch import Dispatcher
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Session, Settings
from rlgraph.errors import ProgramError
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.simulate import simulate
from rlgraph.ir.graph import with_node_ids
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import FusedTraining
from rlgraph.passes.compilation.choose_plan import fused_pipeline_timetables, peak_memory_by_pool
from rlgraph.passes.compilation.default_plan import missing_feature_diagnostics
from rlgraph.passes.cost.fused_pipelines import _in_flight
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.relative_costs import relative_pipeline_model
from rlgraph.passes.pipelines.time_sharing import device_schedule
from rlgraph.passes.pipelines.timetable import ScheduleEntry, compute_timetable
from rlgraph.passes.resharding.group_edges import group_edges
from tests.suites import few

SMALL = 'model critic   = value_lm("Qwen/Qwen2.5-3B")'
LINE = "fuse actor.train, critic.train\n"
SCHEDULE = """schedule ppo
pool learn = 8 devices
pool play  = 8 devices
place actor.train, critic on learn(engine=megatron, tp=2, pp=4)
place actor.generate      on play(engine=vllm, tp=2)
place ref, reward         on play
"""
WHOLE = SCHEDULE.replace("pp=4", "pp=4, chunks=1")
"""Trainings that share a pipeline have one part of the layers on each stage, and others as many as are best."""


class Pieces(Here):
    """Trainings that come together are written down."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.pieces: list[list[str]] = []
        self.turn = threading.Lock()

    def run_request(self, order: NodeRequest) -> NodeOutput:
        # Both pools have the models of one session.
        with self.turn:
            return super().run_request(order)

    def run_fused_trainings(self, orders: list[NodeRequest]) -> list[NodeOutput]:
        self.pieces.append([order.frame.values[order.node.inputs[0]] for order in orders])
        return [self.run_request(order) for order in orders]


@pytest.mark.parametrize("clock", [InlineClock, ThreadClock])
def test_they_are_one_piece_of_work_and_compute_what_one_process_does(tmp_path: Path, clock: type) -> None:
    folder, (swaps, changes) = data_folder(tmp_path), PROGRAMS["ppo"]
    text = shipped("ppo", swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    plan = replace(made.plan, fused=(FusedTraining(("actor", "critic"), ("critic",)),))
    program, settings = with_node_ids(made.program), Settings(folder=folder)
    transport = Pieces(Session(program, settings))
    backend = HereBackend(program, plan, transport, clock(), SilentObserver(), transport.session.first, seed=0)
    local = LocalBackend(made.program, settings)
    try:
        for found, expected in zip(backend.run_steps(STEPS), local.run_steps(STEPS), strict=True):
            assert found.metrics == expected.metrics
    finally:
        backend.close()
        local.close()
    trained = backend.optimizer_step_counts()
    assert trained == local.optimizer_step_counts() and trained["actor"] > STEPS
    assert transport.pieces == [["actor", "critic"]] * trained["actor"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fused")
    (made / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    return made


@cache
def chosen(
    folder: Path,
    line: str,
    batch: int = 128,
    cluster: str = "2x8:h100-80gb",
    before: str = "",
    schedule: str = SCHEDULE,
) -> Compiled:
    source = (Path(rlgraph.__file__).parent / "algorithms/ppo.rlf").read_text()
    text = source.replace("model critic   = value_lm(base)", SMALL).replace("batch=1024", f"batch={batch}")
    path = folder / "ppo.rlf"
    path.write_text(text.replace("reward_lm(judge)", "reward_lm(base)"))
    return rlgraph.compile(path, schedule=schedule + before + line, cluster=cluster, fuse=False)


def test_it_takes_as_long_as_the_lists_that_ranks_follow(folder: Path) -> None:
    turns, fused = chosen(folder, "", schedule=WHOLE), chosen(folder, LINE)
    without, found = simulate(turns), simulate(fused)
    assert fused.plan_file_sections["predicted"]["seconds"] == pytest.approx(found.seconds, rel=0.03)
    # The lists are those of a rank, which counts parameters; the seconds are the cost model's.
    [each] = fused_pipeline_timetables(fused.choice).values()
    actor, critic = each.problem.models
    assert critic.reverse and not actor.reverse and actor.forward + actor.backward > critic.forward + critic.backward
    configs = fused.choice.model_configs
    recompute = _recompute(fused)
    known = [
        relative_pipeline_model(
            configs[name].shape,
            configs[name].kind,
            4,
            model.micro_batches,
            recompute=recompute[name],
            turned=name == "critic",
        )
        for name, model in zip(("actor", "critic"), each.problem.models, strict=True)
    ]
    assert each.lists == best_rule_schedule(PipelineProblem(tuple(known)))
    assert each.table == compute_timetable(each.problem, each.lists)
    assert each.bound <= each.table.makespan < each.serial_seconds
    pieces = [
        work for work in found.works if work.name == "train actor, critic" and work.start >= found.last_step_start
    ]
    apart = [work for work in without.works if work.op == "train" and work.start >= without.last_step_start]
    assert len(apart) == 2 * len(pieces) > 0
    saved = sum(work.seconds for work in apart) - sum(work.seconds for work in pieces)
    # Beside the bubbles an order is saved; rows come in mini-batches of other lengths than the average.
    assert saved == pytest.approx(len(pieces) * (each.serial_seconds - each.table.makespan), rel=0.25)
    assert found.seconds < without.seconds


def test_models_in_several_parts_share_a_pipeline_too(folder: Path) -> None:
    made = [chosen(folder, LINE, schedule=SCHEDULE.replace("pp=4", f"pp=2{more}")) for more in ("", ", chunks=2")]
    (one,), (two,) = (fused_pipeline_timetables(each.choice).values() for each in made)
    assert [model.chunks for model in two.problem.models] == [2, 2]
    assert len(two.lists[0]) == 2 * len(one.lists[0])
    assert two.bound <= two.table.makespan < 1.05 * one.table.makespan
    assert simulate(made[1]).seconds == pytest.approx(made[1].plan_file_sections["predicted"]["seconds"], rel=0.03)
    assert peak_memory_by_pool(made[1].choice)["learn"].fits


UNLIKE = """schedule ppo
pool learn = 8 devices
pool play  = 8 devices
place actor.train    on learn(engine=megatron, tp=2, pp=4)
place critic         on learn(engine=megatron, {critic})
place actor.generate on play(engine=vllm, tp=2)
place ref, reward    on play
"""


@pytest.mark.parametrize(
    ("critic", "copies"),
    few([("tp=2, pp=2", 2), ("tp=1, pp=4", 1), ("tp=1, pp=2", 2), ("tp=2, pp=2, chunks=2", 2)], "tp=2, pp=2"),
)
def test_models_that_are_split_unlike_share_a_pipeline(folder: Path, critic: str, copies: int) -> None:
    schedule = UNLIKE.format(critic=critic)
    # Trainings that share a pipeline have one part of the layers on each stage: what they save is seen beside such.
    # Of 128 rows the fastest micro-batches are so long that two trainings have no memory for theirs together.
    alone = schedule.replace("pp=4)", "pp=4, chunks=1)").replace("pp=2)", "pp=2, chunks=1)")
    turns, fused = (chosen(folder, line, batch=256, schedule=text) for line, text in (("", alone), (LINE, schedule)))
    [each] = fused_pipeline_timetables(fused.choice).values()
    assert [model.copies for model in each.problem.models] == [1, copies]
    assert [model.stages for model in each.problem.models] == [4, 4 // copies]
    # By the lists of ranks, which count parameters; in the cost model's seconds.
    configs, recompute = fused.choice.model_configs, _recompute(fused)
    known = [
        replace(
            relative_pipeline_model(
                configs[name].shape,
                configs[name].kind,
                model.stages,
                model.micro_batches,
                recompute=recompute[name],
                turned=model.reverse,
            ),
            copies=model.copies,
            chunks=model.chunks,
        )
        for name, model in zip(("actor", "critic"), each.problem.models, strict=True)
    ]
    assert each.lists == best_rule_schedule(PipelineProblem(tuple(known)))
    for stage, own in enumerate(each.lists):
        most = [model.micro_batches for model in each.problem.models]
        steps = device_schedule([replace(model, name="") for model in _whole(known)], stage, most, most)
        here = [step for step in steps if isinstance(step, ScheduleEntry)]
        assert [entry.part for entry in here] == [entry.part for entry in own], "what processes take turns by"
    found = simulate(fused)
    assert found.seconds == pytest.approx(fused.plan_file_sections["predicted"]["seconds"], rel=0.03)
    assert found.seconds < simulate(turns).seconds
    works = [work for work in found.works if work.name == "train actor, critic"]
    assert works and all(len({*work.groups}) == 2 for work in works), "two groups do one piece of work"
    assert fused.to_svg()
    path = folder / "unlike.plan.json"
    path.write_text(fused.plan_json(folder))
    assert rlgraph.load_plan(path).plan == fused.plan


def _recompute(made: Compiled) -> dict[str, bool]:
    """Which trainings compute their activations again."""
    components, options = made.choice.problem.components, made.choice.search_result.options
    return {
        component.model_name: option.deployment.recompute
        for component, option in zip(components, options, strict=True)
        if component.work == "train"
    }


def _whole(known: list[PipelineModel]) -> list[PipelineModel]:
    return [
        replace(
            model,
            micro_batches=1,
            **{name: getattr(model, name) * model.micro_batches for name in ("forward", "backward", "memory")},
        )
        for model in known
    ]


def test_processes_of_unlike_models_keep_what_each_of_them_needs(folder: Path) -> None:
    """Not what both need at one moment: what one does not need is not the other's."""
    made = chosen(folder, LINE, schedule=UNLIKE.format(critic="tp=1, pp=4"))
    [each] = fused_pipeline_timetables(made.choice).values()
    joint = _in_flight(each.problem, each.lists, ["one", "one"])
    apart = _in_flight(each.problem, each.lists, ["one", "other"])
    assert each.in_flight == apart
    assert all(any(all(map(_no_more, one, other)) for other in apart) for one in joint)
    assert apart != joint
    # By hand, of each stage.
    expected = set()
    for stage, own in enumerate(each.lists):
        most, held = [0, 0], [0, 0]
        for entry in own:
            held[entry.replica] += 1 if entry.part == "F" else -1
            most = [*map(max, most, held)]
        ends = [line.stages[-1] == stage for line in each.problem.replicas]
        expected.add(tuple((0, count) if end else (count, 0) for count, end in zip(most, ends, strict=True)))
    assert {*apart} <= expected


def _no_more(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1]


def test_micro_batches_of_both_are_in_memory(folder: Path) -> None:
    turns, fused = (peak_memory_by_pool(chosen(folder, line, schedule=WHOLE).choice)["learn"] for line in ("", LINE))
    one, both = (
        {model for model, what, size in peak.parts if what in ("activations", "buffers") and size > 1e9}
        for peak in (turns, fused)
    )
    assert len(one) == 1 and both == {"actor", "critic"}


def test_where_both_do_not_fit_they_are_trained_one_after_the_other(folder: Path) -> None:
    found = set()
    for gigabytes in (40, 60):
        made = chosen(folder, LINE, cluster=f"2x8:h100-80gb(memory={gigabytes}GB)")
        assert peak_memory_by_pool(made.choice)["learn"].fits
        assert ("W0906" in {each.code for each in made.diagnostics}) != bool(made.plan.fused)
        found.add(bool(made.plan.fused))
    assert found == {True, False}


def test_it_is_in_the_plan_file(folder: Path) -> None:
    made = chosen(folder, LINE)
    path = folder / "fused.plan.json"
    path.write_text(made.plan_json(folder))
    document = json.loads(path.read_text())
    assert document["plan"]["fused"] == [{"models": ["actor", "critic"], "turned": ["critic"]}]
    assert set(document["predicted"]["fused"]) == {"actor, critic"}
    assert rlgraph.load_plan(path).plan == made.plan
    line = "train actor, critic in one pipeline, critic the other way round: "
    assert line in summary_text(made) and any(
        each.startswith(line) for each in chosen_plan_lines(made.choice, made.plan_file_sections["predicted"])
    )
    assert line in made.to_svg()
    assert not missing_feature_diagnostics(made.plan)
    wrong = {
        "E0955": {"models": ["actor", "critc"], "turned": ["critc"]},
        "E0973": {"models": ["actor", "ref"], "turned": ["ref"]},
    }
    for code, piece in wrong.items():
        document["plan"]["fused"] = [piece]
        path.write_text(json.dumps(document))
        with pytest.raises(ProgramError) as error:
            rlgraph.load_plan(path)
        assert {each.code for each in error.value.diagnostics} == {code}


def test_a_model_whose_stages_lie_the_other_way_round_has_its_results_on_the_first_ranks(folder: Path) -> None:
    made = chosen(folder, LINE)
    plan = made.plan
    group = plan.group_of_role("critic", "train")
    assert group.mesh == plan.group_of_role("actor", "train").mesh == make_mesh(pp=4, tp=2)
    assert plan.has_reversed_stages("critic", group.name) and not plan.has_reversed_stages("actor", group.name)
    assert (group.result_ranks(), group.result_ranks(turned=True)) == ((6,), (0,))
    # The weights of the actor lie as ever, and values come from the rank that has the critic's last stage.
    [values] = [edge for edge in group_edges(made.program, plan) if edge.stages_reversed]
    assert (values.source, values.value) == (group.name, "value")
    # One order: who has results of a model has what it made, and all others lack the same.
    dispatch = Dispatcher(made.program, plan, *[None] * 6)  # type: ignore[arg-type]
    ranks = [tuple(rank for _, rank in alike) for alike in dispatch.ranks_by_missing_rows(group, 0)]
    assert ranks == [(6,), (0,), (1, 2, 3, 4, 5, 7)]
    other = dispatch.ranks_by_missing_rows(plan.group_of_role("actor", "generate"), 0)
    assert [len(each) for each in other] == [1, 1]


def test_where_processes_are_in_one_each_training_is_by_itself(folder: Path) -> None:
    assert chosen(folder, LINE).plan.one_rank_plan("transformers").fused == ()


@pytest.mark.long
def test_the_search_finds_them_where_models_are_split_unlike(folder: Path) -> None:
    chosen(folder, "")
    schedule = UNLIKE.format(critic="tp=1, pp=4")
    made, alone = (
        rlgraph.compile(folder / "ppo.rlf", schedule=schedule, cluster="2x8:h100-80gb", fuse=fuse)
        for fuse in (True, False)
    )
    told, without = made.plan_file_sections["predicted"], alone.plan_file_sections["predicted"]
    assert made.plan.fused == (FusedTraining(("actor", "critic"), ("critic",)),) and not alone.plan.fused
    splits = [made.plan.group_of_role(model, "train").mesh for model in ("actor", "critic")]
    assert splits == [make_mesh(pp=4, tp=2), make_mesh(dp=2, pp=4)]
    assert told["seconds"] < told["unfused_seconds"] == pytest.approx(without["seconds"])
    assert told["bound_seconds"] <= told["unfused_seconds"] and peak_memory_by_pool(made.choice)["learn"].fits
