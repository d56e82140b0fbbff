"""`rlgraph simulate`: the step as a table, as JSON, as a timeline and as a picture, and what is said where that cannot
be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import rlgraph
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.explain.simulate import simulate
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.pipelines.timetable import timed_entries
from rlgraph.passes.placement.choose import PlacementChoice

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
ROOT = Path(rlgraph.__file__).parent.parent
PPO = [str(ALGORITHMS / "ppo.rlf"), str(ALGORITHMS / "ppo.rls")]
CLUSTER = ["--cluster", "2x8:a100-80gb"]
CODES = (Path(rlgraph.__file__).parent / "errors" / "codes" / "simulation.md").read_text("utf-8")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = run_command(["simulate", *arguments])
    return code, *capsys.readouterr()


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *PPO, *CLUSTER)
    assert (code, err) == (0, "")
    head, pools, path, totals = (part.splitlines() for part in out.split("\n\n"))
    assert re.fullmatch(r"ppo on 2x8:a100-80gb: [\d,.]+ s a step by the simulator", head[0])
    assert [line.split()[0] for line in pools[1:]] == ["host", "learn", "play"]
    assert re.search(r"learn +8 .* rollout from play [\d,.]+ s", pools[2]), "it waits for the rows"
    assert re.search(r"play +8 .* weights of step t-1 [\d,.]+ s", pools[3]), "it waits for the training"
    assert [line.split()[0] for line in path] == ["start", "0", *(line.split()[0] for line in path[2:])]
    assert any("sync actor" in line and "learn and play" in line for line in path)
    assert any("train critic x16" in line for line in path)
    assert "tokens/s" in totals[0] and "for a million tokens" in totals[1] and "defaults" in totals[2]


def test_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *PPO, *CLUSTER, "--message-format", "json", "--steps", "3")
    [found] = [record for line in out.splitlines() if (record := json.loads(line))["type"] == "simulation"]
    assert code == 0 and found["steps"] == 3 and found["cluster"] == "2x8:a100-80gb"
    for pool in found["pools"]:
        assert pool["busy"] + pool["idle"] == pytest.approx(found["seconds"])
        assert sum(wait["seconds"] for wait in pool["waited"]) == pytest.approx(pool["idle"])
    path = found["critical_path"]
    assert all(before["start"] + before["seconds"] == pytest.approx(after["start"]) for before, after in pairwise(path))
    # What the step ahead had begun meanwhile is older than the step.
    inside = sum(work["seconds"] + min(work["start"], 0) for work in path)
    assert path[0]["start"] <= 0 and inside == pytest.approx(found["step_seconds"][-1])
    assert sum(found["step_seconds"]) == pytest.approx(3 * found["seconds"])
    assert all(sum(work["parts"].values()) == pytest.approx(work["seconds"]) for work in path)
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["seconds"])
    assert found["warm_up"]["steps"] == 1 and found["steady"] is None and found["under_way"] == pytest.approx(1)
    bound = found["bound"]
    assert 0 < bound["cycle"] < found["seconds"], "actor and critic could train at the same time"
    assert bound["seconds"] == max(bound["load"], bound["cycle"]) <= found["seconds"]
    staleness = found["staleness"]
    assert staleness.pop("batches") < 1, "what is sampled is trained on in the same step"
    assert staleness == {"mean": 0, "most": 0, "rows": {"0": 1024}} and found["trained_rows"] == 1024
    # 16 devices; a batch of 1,024 rows, prompts of 256 tokens on average and answers of fewer, up to 512.
    assert found["price_per_hour"] == pytest.approx(16 * read_cluster("1x1:a100-80gb").islands[0].device.price)
    assert found["price_per_million_tokens"] == pytest.approx(
        found["price_per_hour"] / 3600 / found["tokens_per_second"] * 1e6
    )
    assert found["rows"] == 1024 and 384 < found["tokens"] / 1024 < 512


def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, svg = tmp_path / "step.json", tmp_path / "step.svg"
    code, out, err = told(capsys, *PPO, *CLUSTER, "--trace", str(trace), "--svg", str(svg))
    assert (code, err) == (0, f"wrote {trace}\nwrote {svg}\n") and "wrote" not in out
    assert svg.read_text().startswith("<svg") and "train actor" in svg.read_text()
    slices: dict[int, list[tuple[float, float]]] = {}
    events = json.loads(trace.read_text())["traceEvents"]
    for event in events:
        if event["ph"] == "X" and event["cat"] not in ("forward", "backward"):
            slices.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(tracks[tid] for tid in slices) == [
        "host",
        "learn.megatron",
        "learn.megatron, stage 1",
        "learn.megatron, stage 2",
        "play.megatron",
        "play.vllm",
    ]
    for track in slices.values():
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(sorted(track))), "slices do not overlap"


def test_stages_of_a_pipeline_are_tracks_of_a_timeline(tmp_path: Path) -> None:
    schedule = tmp_path / "ppo.rls"
    schedule.write_text(Path(PPO[1]).read_text() + "fuse actor.train, critic.train\n")
    for given, names in ((schedule, ["train actor, critic"]), (Path(PPO[1]), ["train critic", "train actor"])):
        found = simulate(rlgraph.compile(PPO[0], schedule=given, cluster="2x8:a100-80gb"))
        found.write_trace(tmp_path / "step.json")
        events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
        tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        slices = [event for event in events if event["ph"] == "X"]
        svg = found.to_svg()
        for name in names:
            works = [work for work in found.works if work.name == name]
            assert len(works) == 16 and all(work.stages is not None for work in works)
            assert f">{name}{' in one pipeline' * (',' in name)}<" in svg
            outer = [each for each in slices if each["cat"] == "pipeline" and each["name"] == name]
            assert len(outer) == 32, "each mini-batch on either stage"
            for work, pair in zip(works, zip(outer[::2], outer[1::2], strict=True), strict=True):
                assert work.stages is not None
                fusion = work.stages()
                assert work.pipeline_start + fusion.table.makespan <= work.end + 1e-9
                expected = sorted(
                    (
                        piece.stage,
                        piece.number,
                        piece.entry.part == "B",
                        fusion.problem.replicas[piece.entry.replica].model.name,
                    )
                    for piece in timed_entries(fusion.problem, fusion.lists, fusion.table)
                )
                within = []
                for stage, whole in enumerate(pair):
                    assert tracks[whole["tid"]] == f"learn.megatron, stage {stage + 1}"
                    assert whole["dur"] == pytest.approx(fusion.table.makespan * 1e6)
                    for each in slices:
                        inside = whole["ts"] - 1e-2 <= each["ts"] and (
                            each["ts"] + each["dur"] <= whole["ts"] + whole["dur"] + 1e-2
                        )
                        if each["tid"] == whole["tid"] and each is not whole and inside:
                            model, way, number = each["name"].split()
                            assert each["cat"] == way
                            within.append((stage, int(number) - 1, way == "backward", model))
                assert sorted(within) == expected


def test_a_timeline_has_only_so_many_slices_of_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(rlgraph.compile(PPO[0], schedule=PPO[1], cluster="2x8:a100-80gb"))
    one = next(work.stages() for work in found.works if work.stages is not None).problem.forward_backward_count
    monkeypatch.setattr("rlgraph.explain.simulation.STAGED", 3 * one)
    found.write_trace(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert 0 < sum(event.get("cat") in ("forward", "backward") for event in events) <= 3 * one
    assert sum(event["name"].startswith("train ") for event in events if event.get("cat") == "train") == 32


@pytest.mark.long
def test_more_devices_are_faster_and_longer_answers_slower(capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(*arguments: str) -> float:
        _, out, _ = told(capsys, *PPO, *CLUSTER, "--message-format", "json", *arguments)
        return float(json.loads(out.splitlines()[-1])["seconds"])

    whole = seconds()
    assert seconds("--response-tokens", "32") < whole < seconds("--response-tokens", "512")
    assert seconds("--prompt-tokens", "64") < whole < seconds("--prompt-tokens", "mean=2000,p99=8000")
    assert seconds("--cluster", "2x8:h100-80gb") < whole
    assert seconds() == whole


@pytest.mark.parametrize("name", sorted(path.stem for path in ALGORITHMS.glob("*.rlf")))
def test_every_program_that_ships(name: str) -> None:
    known = '"Qwen/Qwen2.5-7B"'
    swaps = {"helpful": known, "harmful": known} if name == "safe_rlhf" else {}
    program = rlgraph.compile(ALGORITHMS / f"{name}.rlf", swaps, devices=8)
    found = simulate(program, read_cluster("1x8:h100-80gb"), workload=Workload(kept=0.5))
    assert found.seconds > 0 and found.tokens > 0
    inside = sum(work.seconds_within(found.last_step_start, found.ends[-1]) for work in found.critical_path)
    assert inside == pytest.approx(found.seconds)
    assert any(work.op == "train" for work in found.critical_path)


def test_a_plan_file_is_simulated_as_its_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also with the lengths that it was made for, which nobody says again."""
    given = *PPO, *CLUSTER, "--response-tokens", "64"
    assert run_command(["compile", *given, "--emit", "plan", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    [plan] = tmp_path.glob("*.json")
    assert told(capsys, str(plan))[1] == told(capsys, *given)[1]
    code, _, err = told(capsys, str(plan), "--cluster", "1x8:a100-80gb")
    assert code == 1 and err.startswith("error[E0960]")
    code, _, err = told(capsys, str(plan), *CLUSTER, "--set", "gamma=0.9")
    assert code == 2 and "does not go with a plan file" in err


def test_what_a_plan_file_would_predict_is_not_worked_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is a simulation of its own, of a plan that overlaps."""

    def overlapped(choice: PlacementChoice) -> float:
        raise AssertionError("it is simulated twice")

    monkeypatch.setattr("rlgraph.passes.compilation.overlap_simulation.simulate_step_seconds", overlapped)
    assert told(capsys, *PPO, *CLUSTER)[0] == 0


def test_without_a_cluster_it_is_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *PPO)
    assert code == 0 and out.startswith("ppo on 1x16:cpu: ")


WRONG = {
    "E0932": [*PPO, "--cluster", "1x8:a100-80gb"],
    "E0935": [*PPO, *CLUSTER, "--set", 'base="mine/unknown"'],
    "E0962": [str(ALGORITHMS / "safe_rlhf.rlf")],
    "E0963": [*PPO, *CLUSTER, "--svg", "missing/step.svg"],
    "E0818": [*PPO, *CLUSTER, "--trace", "missing/step.json"],
    "E0921": [*PPO, "--cluster", "2x8:a100-90gb"],
}


@pytest.mark.parametrize("code", WRONG)
def test_what_cannot_be_is_said(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    status_, out, err = told(capsys, *WRONG[code])
    assert status_ in (1, 2) and out == "" and err.startswith(f"error[{code}]") and "help: " in err


def test_calls_that_make_no_sense() -> None:
    program = rlgraph.compile(ALGORITHMS / "grpo.rlf")
    for wrong in ({"steps": 0}, {"workload": Workload(kept=0.0)}, {"workload": Workload(Lengths((1.0,)), kept=1.5)}):
        with pytest.raises(ProgramError, match="E0964"):
            simulate(program, **wrong)  # type: ignore[arg-type]


def test_a_schedule_that_a_cluster_cannot_hold() -> None:
    """By the count of the search, at the pool; a smaller model fits."""
    schedule = "schedule grpo\npool all = 1 devices\nplace actor on all(engine=transformers)\n"
    small, large = (
        rlgraph.compile(ALGORITHMS / "grpo.rlf", {"base": f'"Qwen/Qwen2.5-{size}B"'}, schedule=schedule)
        for size in ("0.5", "7")
    )
    lengths = Workload(Lengths((100.0,)), Lengths((100.0,)))
    assert simulate(small, "1x1:h100-80gb", workload=lengths).seconds > 0
    with pytest.raises(ProgramError) as found:
        simulate(large, "1x1:h100-80gb", workload=lengths)
    [wrong] = found.value.diagnostics
    assert wrong.code == "E0958" and wrong.span.line == 2


def test_groups_that_lost_all_rows() -> None:
    text = (
        (ALGORITHMS / "online_dpo.rlf")
        .read_text()
        .replace("    best ", "    keep rollout where score > 0\n    best ", 1)
    )
    program = rlgraph.compile(text)
    with pytest.raises(ProgramError, match="E0961"):
        simulate(program, workload=Workload(kept=0.1))
    assert simulate(program, workload=Workload(kept=1.0)).seconds > 0


def test_every_code_is_explained() -> None:
    used = {
        code
        for path in Path(rlgraph.__file__).parent.rglob("*.py")
        for code in re.findall(r'"(E096\d)"', path.read_text())
    }
    assert used == set(re.findall(r"^## (E\d+)", CODES, re.MULTILINE))


def test_a_notebook_shows_the_picture() -> None:
    found = simulate(rlgraph.compile(ALGORITHMS / "grpo.rlf"), read_cluster("1x1:h100-80gb"))
    shown = found._repr_mimebundle_()
    assert shown["image/svg+xml"].startswith("<svg") and shown["text/plain"] == str(found)


def test_compiling_loads_no_torch() -> None:
    code = "import sys, rlgraph.cli; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
