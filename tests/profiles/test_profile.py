"""`rlgraph profile` measures an engine, and what it writes changes what `rlgraph simulate` says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest

from rlgraph.api import compile
from rlgraph.backends.enginespec.rates import Rates
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.shape import Shape
from rlgraph.cli import run_command
from rlgraph.explain.simulate import simulate
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles import profile as profiling
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.probes import Probe, ProbeModel, ProbeWork
from rlgraph.profiles.timed_run import CoreWaitReader, Stopwatch, TimedStep, TimedWork

POINTS = (ProbeWork(1, 4), ProbeWork(2, 4, 2), ProbeWork(2, 10))


@pytest.fixture(scope="module", params=["known seconds", pytest.param("this machine", marks=pytest.mark.long)])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of a tiny grid: of this machine, or of a clock on which every look takes a thousandth of a
    second."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "known seconds":
            patch.setattr("time.perf_counter", (look / 1000 for look in count()).__next__)
            patch.setattr(CoreWaitReader, "wait_seconds", lambda cores: [])
        patch.setitem(profiling.SIZES, "cpu", (ProbeModel(32, 1, 32), ProbeModel(64, 2, 64)))
        patch.setitem(profiling.POINTS, "cpu", POINTS)
        path = tmp_path_factory.mktemp("profile") / "here.json"
        assert run_command(["profile", "--quick", "--engines", "transformers", "-o", str(path)]) == 0
    return path


def test_constants_are_positive(file: Path) -> None:
    found = read_calibration(file)
    assert set(found.errors) == {"transformers.generate", "transformers.forward", "transformers.train"}
    assert set(found.held_out) == set(found.errors)
    assert all(0 <= each.median <= each.worst for each in found.held_out.values())
    for kind in ("generate", "forward", "train"):
        rates = asdict(found.constants.rates["transformers", kind])
        assert min(rates.values()) >= 0
        assert sum(rates[name] for name in ("call", "block", "layer", "row", "token")) > 0
    assert found.constants.host.node > 0
    assert found.device.flops["float32"] > 1e9
    assert found.device.bandwidth > 1e8
    assert json.loads(file.read_text())["machine"]["cores"]


def test_the_seconds_of_a_known_clock_are_found_again(file: Path, request: pytest.FixtureRequest) -> None:
    """Every piece of work takes as long as every other, whatever it is; so does a product of matrices."""
    if request.node.callspec.params["file"] != "known seconds":
        pytest.skip("nobody knows what this machine takes")
    found = read_calibration(file)
    for kind in ("generate", "forward", "train"):
        rates = asdict(found.constants.rates["transformers", kind])
        assert rates["call"] == pytest.approx(1e-3, rel=0.02)
        assert not any(rates[name] for name in ("block", "layer", "row", "token", "update"))
    assert found.device.flops["float32"] == pytest.approx(2 * 1024**3 / 1e-3, rel=1e-3)
    assert found.device.bandwidth == pytest.approx(8 * (1 << 24) / 1e-3, rel=1e-3)


def test_an_order_that_was_sent_behind_weights_says_nothing_of_orders(tmp_path: Path) -> None:
    """Its process has it before it can begin: what passes until the weights are there is theirs."""
    (tmp_path / "p.rlf").write_text(Probe((ProbeModel(32, 1, 32),), POINTS).program_text)
    node = next(iter(compile(tmp_path / "p.rlf").program.phases[0].graph.nodes))
    watch = Stopwatch()
    # How long this process waits for a core is no part of it.
    watch.cores.wait_seconds = lambda: []  # type: ignore[method-assign]

    def took(behind: bool) -> TimedWork:
        watch.node_started(node)
        if behind:
            watch.add_span("play", 0, "sync m0", "sync", 0.0, 5.0)
            watch.weights_sent("m0", "learn", "play", 5.0, 0, 0)
        watch.add_span("play", 0, node.name, node.op, 5.0, 6.0)
        watch.node_done(node, 8.0, 0)
        return watch.take_works()[-1]

    waiting, behind = took(False), took(True)
    assert waiting.seconds - waiting.inside == pytest.approx(7, abs=0.5)
    assert behind.seconds == behind.inside == pytest.approx(1, abs=0.5)


def test_work_takes_time_however_long_it_waited() -> None:
    """The counter of waits is coarser than the clock: work would seem to have taken none, and nothing fits that."""
    watch = Stopwatch()
    for waited in (0.0, 5e-4, 1e-3, 2e-3):
        watch.add_work("x", "tensor", seconds=1e-3, inside=8e-4, waited=waited)
    assert [each.inside for each in watch.take_works()] == pytest.approx([8e-4, 3e-4, 8e-5, 8e-5])


def test_a_calibration_changes_a_prediction(file: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "ab"}\n')
    (tmp_path / "rewards.py").write_text(
        "def score(prompts, completions, **columns):\n    return [0.0 for _ in prompts]\n"
    )
    (tmp_path / "p.rlf").write_text(Probe((ProbeModel(32, 1, 32),), POINTS).program_text)
    schedule = "schedule probe\npool all = 1 devices\nplace m0, r0 on all(engine=transformers)\n"
    compiled, known = compile(tmp_path / "p.rlf", schedule=schedule), Workload(Lengths((8.0,)))
    found = read_calibration(file)
    plain, here = (simulate(compiled, workload=known, calibration=each) for each in (None, found))
    assert here.source == str(file)
    # By how much is this machine's affair.
    assert here.seconds != plain.seconds


def test_the_command_takes_a_calibration(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.rlf").write_text(Probe((ProbeModel(32, 1, 32),), POINTS).program_text)
    assert run_command(["simulate", str(tmp_path / "p.rlf"), "--cluster", "1x1:cpu", "--calibration", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    broken = tmp_path / "broken.json"
    broken.write_text('{"rlgraph_calibration": 99}')
    assert run_command(["simulate", str(tmp_path / "p.rlf"), "--calibration", str(broken)]) == 1
    assert "E0941" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"), [(["--engines", "tensorflow"], "no engine"), (["-o", "nowhere/here.json"], "no folder")]
)
def test_wrong_commands(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["profile", *given]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_time_beside_all_nodes_counts_what_overlaps_once() -> None:
    done = (
        TimedWork("a", "tensor", 1.0, 3.0, 2.0),
        TimedWork("b", "tensor", 2.0, 4.0, 2.0),
        TimedWork("c", "tensor", 6.0, 7.0, 1.0),
    )
    assert TimedStep(8.0, 0.5, done).idle_seconds == pytest.approx(3.5)
    assert TimedStep(8.0, 0.5, done).seconds == 7.5


def test_a_model_is_held_out_from_the_constants_that_predict_it() -> None:
    """Where all work takes what the cost model says, a model is predicted by the others; where one takes twice as long,
    it is not."""
    known, batch = Rates(0.5, 0.5, call=1e-3, layer=1e-4), Batch(8.0, Lengths((64.0,)), Lengths((64.0,)))
    [island] = read_cluster("1x1:cpu").islands

    def sample(hidden: int, rows: float, slower: float) -> profiling.TimedSample:
        shape = Shape("llama", 128, hidden, 2 * hidden, 2, 4, 4, hidden // 4)
        config = ModelConfig("m", shape, "causal_lm")
        own = profiling.TimedSample(
            "forward", config, Deployment("transformers", island), replace(batch, rows=rows), 1.0
        )
        return replace(own, seconds=slower * profiling.predicted_seconds(own, known))

    def grid(slower: float) -> list[profiling.TimedSample]:
        sizes = ((64, 1.0), (256, 1.0), (512, slower))
        return [sample(hidden, rows, factor) for hidden, factor in sizes for rows in (1.0, 4.0, 16.0)]

    exact, odd, alone = (profiling.held_out_errors(each) for each in (grid(1.0), grid(2.0), grid(1.0)[:3]))
    assert alone is None
    assert exact is not None and exact.worst < 0.02
    assert odd is not None and odd.worst > 0.3 and odd.median > 0.02


def test_a_probe_says_what_it_asks_for() -> None:
    probe = Probe((ProbeModel(32, 1, 32),), POINTS, prompts=6)
    sampled, trained = probe.batches_at(POINTS[1])
    assert (sampled.rows, sampled.samples, trained.rows) == (12, 2, 6)
    assert sampled.prompt.mean == pytest.approx(sum(map(len, probe.prompt_texts())) / 6)
