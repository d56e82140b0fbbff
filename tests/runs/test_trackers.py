"""Trackers: what they get of a run, afterwards and while it goes on, and runs that end in every way.

20 s of a core, of processes that start; three of the four packages are not among those of the tests, and theirs are skipped without them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from programs_on_disk import start, write_tiny
from written_runs import written_run

import rlgraph
from rlgraph.cli import run_command
from rlgraph.errors import RlgraphError
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.trackers import known
from rlgraph.runs.trackers.base import TrackedRun, TrackerSpec
from rlgraph.runs.trackers.sending import COLUMNS, ROWS, TABLES, Sender
from tests.waits import NEVER

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


class Service:
    """A tracker that keeps what it gets in this process."""

    def __init__(self, replaces_steps: bool = False) -> None:
        self.spec = TrackerSpec("service", "a test", "json", self.open, replaces_steps=replaces_steps)
        self.runs: list[TrackedRun] = []
        self.calls: list[tuple[Any, ...]] = []
        self.id, self.where = "id-1", "here"
        self.fails_at = 0
        """The step at which it cannot be reached."""

    def open(self, run: TrackedRun) -> Service:
        self.runs.append(run)
        return self

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("no route to host")
        self.calls.append(("metrics", step, time_s, dict(numbers)))

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.calls.append(("samples", step, columns, rows))

    def picture(self, name: str, png: bytes) -> None:
        self.calls.append(("picture", name, png))

    def model(self, name: str, folder: Path) -> None:
        self.calls.append(("model", name, folder))

    def close(self, outcome: str) -> None:
        self.calls.append(("close", outcome))

    def sends(self, run: str | Path, models: bool = False) -> Service:
        """Send a run to it."""
        sender = Sender(Path(run), self.spec, lambda: {"dataflow": b"png"})
        try:
            sender.open()
            sender.send_new()
            sender.finish(models)
        finally:
            sender.close()
        return self

    def got(self, what: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == what]

    def steps(self) -> list[int]:
        return [call[0] for call in self.got("metrics")]


def ran(steps: int, out: str | None = "run", **more: Any) -> None:
    rlgraph.compile(Path("tiny.rlf"), {"n": 2}).run(steps, out=out, threads=1, progress=False, **more)


def test_a_tracker_gets_what_is_in_the_folder(folder: Path) -> None:
    ran(2, seed=7)
    service = Service().sends("run", models=True)
    [told] = service.runs
    assert (told.name, told.project, told.id, told.first) == ("run", "tiny", None, 1)
    assert told.program == (folder / "tiny.rlf").read_text()
    assert {"seed": 7, "steps": 2, "set.n": "2", "backend": "local"}.items() <= told.configuration.items()
    assert "versions.torch" in told.configuration
    written = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    times = [event["time_s"] for event in events if event["kind"] == "step_done"]
    assert service.got("metrics") == [
        (record.pop("step"), at, record) for record, at in zip(written, times, strict=True)
    ]
    first, columns, rows = service.got("samples")[0]
    assert (first, columns, len(rows)) == (1, COLUMNS, 4) and rows[0][2] in ("a>", "b>", "c>", "d>")
    assert service.got("model") == [("actor", Path("run/models/actor"))]
    # Pictures are there before the first step: a run that is killed has them.
    assert [call[0] for call in service.calls] == ["picture", *["metrics", "samples"] * 2, "model", "close"]
    assert service.got("close") == [("finished",)]


def test_what_was_sent_is_not_sent_again_and_the_same_run_goes_on() -> None:
    ran(2, save_every=1)
    service = Service().sends("run")
    service.sends("run")
    assert service.steps() == [1, 2] and [run.id for run in service.runs] == [None, "id-1"]
    ran(4, None, resume="run")
    service.sends("run", models=True).sends("run", models=True)
    assert service.steps() == [1, 2, 3, 4] and service.runs[-1].first == 5
    assert len(service.got("picture")) == len(service.got("model")) == 1


@pytest.mark.parametrize("replaces", [False, True])
def test_steps_after_a_checkpoint_are_replaced_where_a_tracker_can(replaces: bool) -> None:
    run = written_run(Path("run"), 4)
    service = Service(replaces_steps=replaces).sends(run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    # A run that was killed goes on from step 2.
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    service.sends(run)
    (run / "metrics.jsonl").write_text("".join(lines))
    service.sends(run)
    assert service.steps() == ([1, 2, 3, 4, 3, 4] if replaces else [1, 2, 3, 4])
    assert [told.first for told in service.runs] == ([1, 3, 3] if replaces else [1, 5, 5])


def test_what_fails_on_the_way_goes_on_there() -> None:
    run = written_run(Path("run"), 450)
    service = Service()
    service.fails_at = 333
    with pytest.raises(ConnectionError):
        service.sends(run)
    service.fails_at = 0
    service.sends(run)
    # It is written down every so often what was sent, and what follows is sent once more.
    assert service.runs[-1].first == 301 and service.steps() == [*range(1, 333), *range(301, 451)]


def test_a_run_that_goes_on_is_sent_line_by_line() -> None:
    whole = written_run(Path("whole"), 3, rows=2)
    run = written_run(Path("run"), 1, rows=2, ended=False)
    service = Service()
    sender = Sender(run, service.spec, dict)
    sender.open()
    assert sender.send_new() == 1 and not sender.is_over
    texts = {name: (whole / name).read_text() for name in ("samples.jsonl", "metrics.jsonl", "events.jsonl")}
    # The samples of a step are there before its metrics, of which half a line may be.
    (run / "samples.jsonl").write_text(texts["samples.jsonl"])
    metrics = texts["metrics.jsonl"].splitlines(keepends=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(metrics[1] + metrics[2][:20])
        file.flush()
        assert sender.send_new() == 1
        file.write(metrics[2][20:])
    (run / "events.jsonl").write_text(texts["events.jsonl"])
    assert sender.send_new() == 1 and sender.is_over
    sender.finish()
    sender.close()
    assert [call[:2] for call in service.calls if call[0] != "close"] == [
        (what, step) for step in (1, 2, 3) for what in ("metrics", "samples")
    ]
    assert service.got("close") == [("finished",)]


def test_samples_are_bounded() -> None:
    service = Service().sends(written_run(Path("run"), 1000, rows=40))
    tables = service.got("samples")
    assert TABLES <= len(tables) <= TABLES + 2 and all(len(rows) == ROWS for _, _, rows in tables)
    assert [tables[0][0], tables[1][0], tables[-1][0]] == [1, 10, 1000]


def test_one_process_at_a_time_sends_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = written_run(Path("run"), 1)
    sender = Sender(run, known.TRACKERS["tensorboard"], dict)
    assert run_command(["track", "run", "--to", "tensorboard"]) == 2
    assert "error[E0851]: another process sends `run` to `tensorboard` now" in capsys.readouterr().err
    sender.close()
    assert run_command(["track", "run", "--to", "tensorboard"]) == 0


def test_a_folder_that_is_none_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["track", "none", "--to", "tensorboard"]) == 2
    assert "E0876" in capsys.readouterr().err and not Path("none").exists()


def test_what_cannot_be_used_is_told_before_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder of that name, as wandb makes one, is no package.
    folder = ModuleSpec("wandb", None, is_package=True)
    monkeypatch.setattr(known, "find_spec", lambda name: folder if name == "wandb" else find_spec(name))
    assert run_command(["run", "tiny.rlf", "--track", "wandb", "--out", "a"]) == 2
    assert capsys.readouterr().err == (
        "error[E0851]: the package `wandb` is not installed, which `wandb` needs\n"
        "help: pip install 'rlgraph-compiler[wandb]'\n\n"
    )
    for how, message in (
        ({"track": ["tensorbord"], "out": "a"}, "there is no tracker `tensorbord`\nhelp: did you mean `tensorboard`?"),
        ({"track": ["tensorboard"], "out": None}, "a run without a folder cannot be tracked"),
        (
            {"track": "tensorboard", "out": "a", "track_model": True},
            "`tensorboard` keeps no models\nhelp: take `wandb`",
        ),
        ({"out": "a", "track_model": True}, "no tracker is named for models"),
    ):
        with pytest.raises(RlgraphError, match="E0851") as wrong:
            ran(1, **how)
        assert message in str(wrong.value)
    assert not Path("a").exists()


def scalars(run: str | Path, tag: str = "reward") -> list[tuple[int, float]]:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(f"{run}/tensorboard")
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_run_is_sent_while_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """And goes on as it was begun: what is done again takes the place of what was."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rlgraph.compile(Path("tiny.rlf"), {"n": 2}).run(3, out="run", threads=1, save_every=2, track=["tensorboard"])
    assert "tensorboard: `tensorboard --logdir run/tensorboard`" in capsys.readouterr().err
    assert [step for step, _ in scalars("run")] == [1, 2, 3]
    events = loader.EventAccumulator("run/tensorboard")
    events.Reload()
    tags = events.Tags()
    assert tags["scalars"] == ["seconds", "reward", "mismatch/kl", "mismatch/max"] and tags["images"] == ["dataflow"]
    assert tags["tensors"] == ["program", "configuration", "samples"]
    [png] = events.Images("dataflow")
    assert png.encoded_image_string.startswith(b"\x89PNG")
    table = events.Tensors("samples")[0].tensor_proto.string_val[0].decode()
    assert table.startswith("| step | table | prompt | answer |") and "| rollout | " in table
    disk.remove_folder(Path("run/checkpoints/step-000000003"))
    ran(4, None, resume="run")
    assert [step for step, _ in scalars("run")] == [1, 2, 3, 4]
    rewards = [json.loads(line)["reward"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [value for _, value in scalars("run")] == pytest.approx(rewards)


def test_a_tracker_that_cannot_be_written_costs_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    Path("run").mkdir()
    blocked = Path("run/tensorboard")
    with pytest.raises(RlgraphError, match="is not empty"):
        blocked.write_text("")
        ran(1)
    blocked.unlink()

    def blocks(event: Any) -> None:
        if event.kind == "opening" and not blocked.exists():
            blocked.write_text("a file")

    rlgraph.compile(Path("tiny.rlf")).run(2, out="run", threads=1, track=["tensorboard"], on_event=blocks)
    told = capsys.readouterr().err
    assert "warning[W0851]: the run is not sent to `tensorboard` any more: File exists" in told
    assert "`rlgraph track run --to tensorboard` sends it later" in told and told.count("W0851") == 1
    blocked.unlink()
    assert run_command(["track", "run", "--to", "tensorboard"]) == 0
    assert [step for step, _ in scalars("run")] == [1, 2]
    assert "sent 2 steps to tensorboard" in capsys.readouterr().out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_run_that_is_ended_is_closed(how: signal.Signals, folder: Path) -> None:
    pytest.importorskip("tensorboard")
    run = start(["run", "tiny.rlf", "--steps", "100000", "--out", "run", "--track", "tensorboard"], folder)
    assert run.stdout is not None and run.stderr is not None
    # It takes a while until the other process has begun, while steps of this program take none.
    seen = ""
    for line in run.stderr:
        seen += line
        if "step 3/" in seen and "tensorboard: " in seen:
            break
    run.send_signal(how)
    run.communicate(timeout=NEVER)
    # The process that sends it has the lock until it has closed the tracker.
    Sender(Path("run"), known.TRACKERS["tensorboard"], dict, wait=True).close()
    written = [json.loads(line)["step"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert json.loads(Path("run/trackers/tensorboard.json").read_text())["step"] == written[-1] >= 3
    assert [step for step, _ in scalars("run")] == written


# With the packages themselves

READERS: dict[str, str] = {
    "mlflow": """
import json, mlflow
client = mlflow.MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("grpo").experiment_id])
id = run.info.run_id
table = json.load(open(client.download_artifacts(id, "samples/step-000001.json")))
print(json.dumps({
    "reward": [[point.step, point.value] for point in client.get_metric_history(id, "reward")],
    "seed": run.data.params["seed"],
    "table": len(table["data"]),
    "picture": [file.path for file in client.list_artifacts(id, "pictures")] == ["pictures/dataflow.png"],
    "model": [file.path for file in client.list_artifacts(id, "models/actor")] == ["models/actor/config.json"],
    "ended": run.info.status == "FINISHED",
}))
""",
    "trackio": """
import json
from trackio.sqlite_storage import SQLiteStorage as storage
[name] = storage.get_runs("grpo")
logs = storage.get_logs("grpo", name)
tables = [log["samples"] for log in logs if "samples" in log]
print(json.dumps({
    "reward": [[log["step"], log["reward"]] for log in logs if "reward" in log],
    "seed": str(storage.get_run_config("grpo", name)["seed"]),
    "table": len(tables[0]["_value"]),
    "picture": any("dataflow" in log for log in logs),
    "model": [artifact["type"] for artifact in storage.get_artifacts("grpo")] == ["model"],
    "ended": True,
}))
""",
    "wandb": """
import json, struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as proto

def records(path):
    # The log of records of LevelDB: blocks of 32 KB, whose pieces have a head of 7 bytes, after one of the file.
    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at:at + 7])
        held, at = held + data[at + 7:at + 7 + length], at + 7 + length
        if kind in (1, 4):
            record = proto.Record()
            record.ParseFromString(held)
            yield record
            held = b""

history, config, artifacts, exits = [], {}, [], []
for path in sorted(Path("run/wandb").glob("offline-run-*/*.wandb")):
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        if kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if kind == "artifact":
            artifacts.append(record.artifact.type)
        if kind == "exit":
            exits.append(record.exit.exit_code)
print(json.dumps({
    "reward": [[row["_step"], row["reward"]] for row in history if "reward" in row],
    "seed": str(config["seed"]),
    "table": next(row["samples/nrows"] for row in history if "samples/nrows" in row),
    "picture": any("dataflow/path" in row for row in history),
    "model": artifacts.count("model") == 1,
    "ended": set(exits) == {0},
}))
""",
}
"""For each package a script that reads with the package's own code what was sent."""


@pytest.mark.parametrize("name", READERS)
def test_what_was_sent_is_read_by_the_package_itself(name: str, folder: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'rlgraph-compiler[{name}]'")
    run = written_run(Path("run"), 2, rows=3)
    (run / "program.rlf").write_text("algorithm grpo\n")
    (run / "models/actor").mkdir(parents=True)
    (run / "models/actor/config.json").write_text("{}")
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "TRACKIO_DIR": f"{folder}/trackio",
        "WANDB_MODE": "offline",
    }
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT)}

    def output(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=NEVER)
        assert done.returncode == 0, done.stderr
        return done.stdout

    track = (sys.executable, "-m", "rlgraph", "track", "run", "--to", name)
    # A picture is what the folder of a real run has; this one's program is a line.
    draws = "from rlgraph.api import run_pictures as drawn\nimport sys\nfrom pathlib import Path\n"
    draws += f"png = Path({str(ROOT / 'docs/img/grpo.png')!r}).read_bytes()\n"
    draws += "drawn.run_pictures = lambda run: {'dataflow': png}\n"
    draws += "from rlgraph.cli import run_command\nsys.exit(run_command(sys.argv[1:]))\n"
    assert "sent 2 steps to" in output(sys.executable, "-c", draws, *track[3:], "--model")
    more = written_run(Path("more"), 3, rows=3)
    for file in ("metrics.jsonl", "events.jsonl", "samples.jsonl"):
        (run / file).write_bytes((more / file).read_bytes())
    assert "sent 1 step that it had not to" in output(*track)
    read = json.loads(output(sys.executable, "-c", READERS[name]).splitlines()[-1])
    assert read.pop("reward") == [[1, pytest.approx(0.5)], [2, pytest.approx(1.0)], [3, pytest.approx(1.0)]]
    assert read == {"seed": "7", "table": 3, "picture": True, "model": True, "ended": True}
