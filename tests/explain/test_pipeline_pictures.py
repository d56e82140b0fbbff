"""The pipelines of a plan as a picture: the lists that its ranks follow, with the seconds that were predicted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.cli import run_command
from rlgraph.explain.pipelines import plan_pipelines
from rlgraph.passes.compilation.choose_plan import fused_pipeline_timetables
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineProblem
from rlgraph.passes.pipelines.published_schedules import interleaved_lists, one_f_one_b_lists
from rlgraph.passes.pipelines.relative_costs import relative_pipeline_model
from tests.viz.charts import bars_of

ROOT = Path(rlgraph.__file__).parent.parent
ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
SCHEDULE = """schedule ppo
pool learn = 8 devices
pool play  = 8 devices
place actor.train, critic on learn(engine=megatron, tp=2, pp=4)
place actor.generate      on play(engine=vllm, tp=2)
place ref, reward         on play
"""
EARLY = """algorithm early
model actor  = causal_lm("Qwen/Qwen2.5-7B")
data prompts = jsonl("prompts.jsonl", batch=64)

step:
    rollout = actor.generate(prompts, n=8, max_tokens=512)
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout) * rollout.length)
"""
FUSED = SCHEDULE + "fuse actor.train, critic.train\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ppo")
    (found / "ppo.rlf").write_text((ALGORITHMS / "ppo.rlf").read_text())
    (found / "apart.rls").write_text(SCHEDULE.replace("pp=4", "pp=4, chunks=1"))
    (found / "fused.rls").write_text(FUSED)
    return found


@pytest.fixture(scope="module")
def together(folder: Path) -> Compiled:
    return rlgraph.compile(folder / "ppo.rlf", schedule=folder / "fused.rls", cluster="2x8:h100-80gb")


@pytest.fixture(scope="module")
def apart(folder: Path) -> Compiled:
    return rlgraph.compile(folder / "ppo.rlf", schedule=folder / "apart.rls", cluster="2x8:h100-80gb", fuse=False)


def test_a_model_in_chunks_is_interleaved(folder: Path) -> None:
    text = "schedule early\npool all = 8 devices\nplace actor.train on all(engine=megatron, tp=2, pp=2, chunks=2)\n"
    [one] = plan_pipelines(rlgraph.compile(EARLY, schedule=text, cluster="1x8:h100-80gb"))
    [model] = one.fusion.problem.models
    assert model.chunks == 2 and one.fusion.lists == interleaved_lists(model)


def test_lists_are_those_that_ranks_make(together: Compiled, apart: Compiled) -> None:
    configs = together.choice.model_configs

    def seen(name: str, micro_batches: int, turned: bool):  # type: ignore[no-untyped-def]
        config = configs[name]
        return relative_pipeline_model(config.shape, config.kind, 4, micro_batches, turned=turned)

    [one] = plan_pipelines(together)
    sizes = [model.micro_batches for model in one.fusion.problem.models]
    assert one.fusion.lists == best_rule_schedule(
        PipelineProblem((seen("actor", sizes[0], False), seen("critic", sizes[1], True)))
    )
    assert one.fusion == fused_pipeline_timetables(together.choice)["actor, critic"]
    alone = {each.fusion.problem.models[0].name: each.fusion for each in plan_pipelines(apart)}
    assert set(alone) == {"actor", "critic"}
    for name, fusion in alone.items():
        [model] = fusion.problem.models
        assert fusion.lists == one_f_one_b_lists(seen(name, model.micro_batches, False))
        # One after the other they take what the cost model says of one that is alone.
        assert fusion.table.makespan == pytest.approx(fusion.bound)


def test_the_memory_in_flight_is_the_plans(together: Compiled, apart: Compiled) -> None:
    for made in (together, apart):
        for each in plan_pipelines(made):
            peak = made.plan_file_sections["predicted"]["memory"]["learn"]
            assert 0 < each.held < peak["bytes"]
    [one] = plan_pipelines(together)
    assert one.held > max(each.held for each in plan_pipelines(apart))


def test_the_picture_has_a_bar_for_each_entry(together: Compiled, apart: Compiled) -> None:
    [one] = plan_pipelines(together)
    svg = together.to_svg(picture="pipelines")
    assert len(bars_of(svg)) == one.fusion.problem.forward_backward_count and "@font-face" in svg
    assert ">train actor, critic in one pipeline<" in svg and "of the time is left out" not in svg
    assert together.to_png(picture="pipelines").startswith(b"\x89PNG")
    told = {bar.fill[0] for bar in bars_of(apart.to_svg(picture="pipelines")) if bar.told.startswith("actor")}
    assert told == {bar.fill[0] for bar in bars_of(svg) if bar.told.startswith("actor")}, "a model has one colour"
    with pytest.raises(rlgraph.ProgramError, match="no DOT text"):
        together.to_dot("pipelines")


def test_a_page_has_them_beside_the_plan_and_the_dataflow(together: Compiled) -> None:
    page = together.to_html()
    kinds = re.findall(r'data-kind="(\w+)"', page)
    assert kinds == ["plan", "time", "timeline", "pipelines"]
    assert page.index("<option>plan</option>") < page.index("<option>pipelines</option>")
    assert "<option>pipelines</option><option>plan</option>" in together.to_html("pipelines")
    assert len(page) - len(_without(page)) < 80_000
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def _without(page: str) -> str:
    return re.sub(r'<div class="picture" data-kind="pipelines".*?</div>', "", page, flags=re.DOTALL)


def test_a_plan_file_has_the_same(together: Compiled, folder: Path) -> None:
    (folder / "ppo.plan.json").write_text(together.plan_json(folder))
    again = rlgraph.load_plan(folder / "ppo.plan.json")
    assert again.to_svg(picture="pipelines") == together.to_svg(picture="pipelines")


def test_where_there_are_none_it_is_said_why(folder: Path) -> None:
    unknown = rlgraph.compile(folder / "ppo.rlf", schedule=folder / "fused.rls")
    assert "of this plan nothing is predicted" in unknown.to_svg(picture="pipelines")
    assert 'data-kind="pipelines"' not in unknown.to_html() and 'data-kind="pipelines"' in unknown.to_html("pipelines")
    flat = rlgraph.compile(ALGORITHMS / "sft.rlf", {"base": '"Qwen/Qwen2.5-0.5B"'}, cluster="1x1:h100-80gb")
    assert "each training of this plan has one stage" in flat.to_svg(picture="pipelines")
    assert 'data-kind="pipelines"' not in flat.to_html()


def test_rows_that_come_in_parts_are_told(folder: Path) -> None:
    (folder / "early.rlf").write_text(EARLY)
    for stream, parts in (("", False), ("stream rollout(block=64)\n", True)):
        (folder / "early.rls").write_text(
            "schedule early\npool learn = 8 devices\npool play = 8 devices\n"
            "place actor.train on learn(engine=megatron, tp=2, pp=4)\n"
            f"place actor.generate on play(engine=vllm, tp=2)\n{stream}"
        )
        made = rlgraph.compile(
            folder / "early.rlf", schedule=folder / "early.rls", cluster="2x8:h100-80gb", stream=False
        )
        [each] = plan_pipelines(made)
        assert each.parts == parts and ("rows come in parts" in made.to_svg(picture="pipelines")) == parts


@pytest.mark.long
def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [str(folder / "ppo.rlf"), str(folder / "fused.rls"), "--cluster", "2x8:h100-80gb"]
    asked = ["compile", *files, "--picture", "pipelines", "--visualize"]
    for name, begins in (("a.svg", b"<svg"), ("a.png", b"\x89PNG"), ("a.html", b"<!doctype")):
        assert run_command([*asked, str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    capsys.readouterr()
    assert run_command([*asked, str(tmp_path / "a.dot")]) == 2
    assert "a picture of pipelines is no graph" in capsys.readouterr().err
    assert run_command(["compile", *files, "--picture", "pipelines", "--emit", "dot"]) == 2


def test_the_page_shows_what_is_drawn(together: Compiled, request: pytest.FixtureRequest) -> None:
    """docs/why/fused.md has this schedule, and the picture that the command beside it makes; here without fonts."""
    page, picture = (ROOT / "docs" / "why" / "fused.md").read_text("utf-8"), ROOT / "docs" / "img" / "pipeline.svg"
    assert (
        f"```text\n{FUSED}```" in page
        and "--cluster 2x8:h100-80gb --picture pipelines --visualize pipeline.svg" in page
    )
    now = together.to_svg(picture="pipelines", embed=False)
    if request.config.getoption("--update-golden"):
        picture.write_text(now, "utf-8")
    else:
        assert picture.read_text("utf-8") == now
