"""The samples of a run: in its folder, on the terminal, and by `rlgraph samples`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from programs_on_disk import write_tiny
from rich.cells import cell_len

import rlgraph
from rlgraph.backends.samples import Sample
from rlgraph.backends.steps import StepResult
from rlgraph.cli import run_command
from rlgraph.runs.events import EventReader, WorkStarted
from rlgraph.runs.observer import BETWEEN_SAMPLES_S, InterruptHandler, RunObserver
from rlgraph.runs.progress import JsonDisplay, LinesDisplay
from rlgraph.runs.samples import SAMPLES, best_and_worst, from_json, sample_lines, to_json
from rlgraph.runs.shown_samples import format_sample


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    write_tiny(tmp_path)
    return tmp_path


def ran(steps: int, **more: Any) -> rlgraph.Run:
    return rlgraph.compile(Path("tiny.rlf")).run(steps, threads=1, progress=False, **more)


def records(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, SAMPLES).read_text().splitlines()]


def sample(place: int, reward: float | None, answer: str = "a", prompt: Any = "a>") -> Sample:
    scores = {} if reward is None else {"score": reward}
    return Sample("rollout", ("prompts", 0, place, 0), prompt, answer, reward, scores, len(answer), 3)


class Breaks(EventReader):
    """Ends a run after so many events."""

    def __init__(self, after: int) -> None:
        self.left = after

    def work_started(self, event: WorkStarted) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_run_keeps_rows_of_each_step() -> None:
    ran(3, out="all")
    rows = records("all")
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    assert all(row["reward"] == row["answer"].count("a") == row["scores"]["reward"] for row in rows)
    assert all(row["version"] == row["step"] - 1 and row["row"][0] == "prompts" for row in rows)
    assert all(row["prompt"] == f"{'abcd'[row['row'][2]]}>" and 1 <= row["length"] <= 4 for row in rows)
    ran(2, out="few", keep_samples=3)
    assert [row["step"] for row in records("few")] == [1, 1, 1, 2, 2, 2]
    ran(1, out="none", keep_samples=0)
    assert not Path("none", SAMPLES).exists()
    ran(1, out="all", overwrite=True, keep_samples=1)
    assert len(records("all")) == 1


def test_a_run_that_goes_on_has_the_samples_of_each_step_once() -> None:
    ran(6, out="whole", keep_samples=5)
    with pytest.raises(KeyboardInterrupt):
        # It is interrupted after steps of which no checkpoint was written.
        ran(6, out="broken", keep_samples=5, save_every=2, on_event=Breaks(30))
    left = Path("broken", SAMPLES)
    left.write_text(left.read_text() + '{"step": 5, "table": "ro')
    ran(6, resume="broken")
    assert records("broken") == records("whole")


def test_the_command_shows_the_best_the_worst_and_the_same_prompts_of_two_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("run").mkdir()
    steps = {
        1: [sample(0, 0.0, "no"), sample(1, 0.5, "half"), sample(2, 1.0, "all")],
        2: [sample(7, 0.0)],
        3: [sample(0, 1.0, "yes"), sample(2, 0.25, "less")],
    }
    lines = [line for step, rows in steps.items() for line in sample_lines(step, rows)]
    Path("run", SAMPLES).write_text("\n".join(lines) + "\n")

    def shown(*arguments: str) -> str:
        assert run_command(["samples", "run", *arguments]) == 0
        return capsys.readouterr().out

    assert shown("--step", "1", "--best", "1") == (
        "step 1: 3 rows kept\n\nbest:  score 1  3 tokens  weights 3  prompts row 2, sample 0\n"
        "  prompt  a>\n  answer  all\n"
    )
    assert [line for line in shown("--worst", "5").splitlines() if "answer" in line] == [
        "  answer  less",
        "  answer  yes",
    ]
    both = shown("--diff", "1", "3")
    assert both.index("yes") < both.index("less") and both.index("no") < both.index("yes")
    assert "step 3:  score 1" in both
    assert "less" in shown("--diff", "1", "3", "--worst", "1") and "yes" not in shown(
        "--diff", "1", "3", "--worst", "1"
    )
    found = [json.loads(line) for line in shown("--step", "1", "--message-format", "json").splitlines()]
    assert [(row["type"], row["which"], row["reward"]) for row in found] == [
        ("sample", "best", 1.0),
        ("sample", "best", 0.5),
        ("sample", "worst", 0.0),
    ]

    def wrong(*arguments: str) -> str:
        assert run_command(["samples", *arguments]) == 2
        return capsys.readouterr().err

    assert "E0842]: step 9 of `run` has no samples" in wrong("run", "--step", "9")
    assert "compare step 1 with 3" in wrong("run", "--diff", "1", "2")
    assert "E0840" in wrong("nowhere") and "leave `--step` out" in wrong("run", "--step", "1", "--diff", "1", "3")
    Path("run", SAMPLES).write_text(lines[0] + '\n{"step": 2}\n')
    assert "E0841]: line 2 of" in wrong("run")
    # The last line is being written.
    Path("run", SAMPLES).write_text(lines[0] + '\n{"step": 2')
    assert "step 1: 1 row kept" in shown()


def test_texts_are_safe_for_a_terminal_and_no_wider() -> None:
    bad = "\x1b[2J\u202e" + "\u6f22" * 200 + "\n" * 30 + "end"
    prompt = [{"role": "user", "content": "What?\r\x07"}, {"role": "assistant", "content": 7}]
    shown = format_sample("best", sample(1, 1.0, bad, prompt), 40)
    assert not set(shown) & set("\x1b\u202e\r\x07")
    assert max(map(cell_len, shown.splitlines())) <= 40 and len(shown.splitlines()) <= 20
    assert "user: What?" in shown and "(" in shown and "characters)" in shown


def test_what_json_has_no_number_for_is_read_back() -> None:
    odd = Sample("rollout", ("prompts", 0, 1, 0), ["\ud800"], "a\u2028b", float("inf"), {"score": float("inf")})
    [line] = sample_lines(4, [odd])
    assert "\u2028" not in line and from_json(json.loads(line)) == odd
    assert to_json(4, odd)["reward"] == "Infinity"


def test_half_of_what_is_shown_is_the_best() -> None:
    rows = [sample(place, reward) for place, reward in enumerate([0.5, 1.0, 0.0, 0.75])]
    assert [(word, row.reward) for word, row in best_and_worst(rows, 3)] == [("best", 1), ("best", 0.75), ("worst", 0)]
    assert len(best_and_worst(rows, 9)) == 4 and best_and_worst([], 2) == []


def test_samples_are_shown_at_first_at_last_and_every_so_often(capsys: pytest.CaptureFixture[str]) -> None:
    def shown_steps(display: LinesDisplay | JsonDisplay, steps: int) -> None:
        now = 0.0

        def clock() -> float:
            return now

        watch = RunObserver(display, InterruptHandler(display), show_samples=2, now=clock)
        watch.run_started({"step": steps})
        for step in range(1, steps + 1):
            now += BETWEEN_SAMPLES_S / 3
            watch.step_done(StepResult(step, "step", 1.0, samples=[sample(step, 0.0), sample(step, 1.0)]))

    stream = io.StringIO()
    shown_steps(LinesDisplay(stream), 6)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith(("best", "worst"))] == [
        f"{word}:  score {reward}  1 token  weights 3  prompts row {step}, sample 0"
        for step in (1, 4, 6)
        for word, reward in (("best", 1), ("worst", 0))
    ]
    assert lines[0] == "step 1/6  1 s"
    shown_steps(JsonDisplay(), 1)
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == ["step", "sample", "sample"]
