"""The checker of traces is checked: honest ones are accepted, and each kind of forged one is refused for what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_traces import BODIES, HEAD, TRAIN
from tiny import data_folder

import rlgraph
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.runs.folder import TRACE

STEPS = 5
PROGRAMS = {
    "plain": f"algorithm plain{HEAD}{BODIES['plain']}{TRAIN}",
    "lag": f"algorithm plain{HEAD.replace('staleness=2', 'lag=1')}{BODIES['plain']}{TRAIN}",
    "updates": f"algorithm plain{HEAD.replace('staleness=2', 'staleness=11, unit=update')}{BODIES['plain']}{TRAIN}",
    "carry": f"algorithm carry{HEAD}{BODIES['carry']}{TRAIN}",
    "drop": f"algorithm drop{HEAD}{BODIES['drop']}{TRAIN}",
    "later": f"algorithm later{HEAD}{BODIES['later']}{TRAIN}",
    "late": f"algorithm late{HEAD.replace('staleness=2', 'staleness=1, late=drop')}{BODIES['late']}{TRAIN}",
    "again": f"algorithm again{HEAD.replace('staleness=2', 'staleness=1, late=again')}{BODIES['again']}{TRAIN}",
    "arrival": f"algorithm arrival{HEAD.replace('staleness=2', 'staleness=2, order=arrival')}{BODIES['arrival']}{TRAIN}",
    "deadline": f"algorithm deadline{HEAD.replace('staleness=2', 'staleness=2, order=deadline')}{BODIES['deadline']}{TRAIN}",
}

Lines = list[dict[str, Any]]
"""Of a trace, step by step."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs, one of each program."""
    data, made = data_folder(tmp_path_factory.mktemp("check")), {}
    for name, text in PROGRAMS.items():
        (data / "program.rlf").write_text(text)
        compiled = rlgraph.compile(data / "program.rlf")
        made[name] = data / name
        compiled.run(steps=STEPS, out=made[name], threads=1, progress=False)
    return made


def forged(run: Path, path: Path, change: Callable[[Lines], object]) -> Path:
    """The folder of a run whose trace says something else."""
    path.mkdir()
    (path / "graph.txt").write_text((run / "graph.txt").read_text())
    lines = [json.loads(line) for line in (run / TRACE).read_text().splitlines()]
    change(lines)
    (path / TRACE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def trained(lines: Lines, step: int) -> list[list[Any]]:
    [entry] = lines[step - 1]["trained"]
    rows: list[list[Any]] = entry["rows"]
    return rows


def leave_out(rows: list[list[Any]], out: Callable[[list[Any]], bool]) -> None:
    rows[:] = [row for row in rows if not out(row)]


def first_group(lines: Lines, step: int) -> None:
    group = trained(lines, step)[0][:3]
    leave_out(trained(lines, step), lambda row: row[:3] == group)


def first_row(lines: Lines, step: int) -> None:
    """Of a group of which others are trained on."""
    rows = trained(lines, step)
    one = next(row for row in rows if sum(other[:3] == row[:3] for other in rows) > 2)
    leave_out(rows, lambda row: row == one)


def again(lines: Lines, step: int) -> None:
    trained(lines, step).extend([trained(lines, step - 1)[0]] * 2)


def versions(lines: Lines, step: int, *runs: tuple[int, int]) -> None:
    """Of the first row that was sampled in a step."""
    lines[step - 1]["sampled"][0]["versions"][0] = runs


def once_less(lines: Lines, step: int) -> None:
    trained(lines, step).remove(trained(lines, step)[0])


def dropped_row(lines: Lines, step: int) -> None:
    trained(lines, step).extend([lines[step - 1]["dropped"][0]["rows"][0]] * 2)


def one_of_a_group(lines: Lines, step: int) -> None:
    """One that the engine made is gone before anybody noted it."""
    sampled = lines[step - 1]["sampled"][0]
    one = sampled["rows"].pop(0)
    sampled["versions"].pop(0)
    for kind in ("dropped", "trained"):
        for entry in lines[step - 1][kind]:
            leave_out(entry["rows"], lambda row: row == one)


def sampled_again(lines: Lines, step: int) -> None:
    for name in ("rows", "versions"):
        lines[step - 1]["sampled"][0][name].append(lines[step - 2]["sampled"][0][name][0])


def later(lines: Lines, step: int) -> None:
    """All copies of a row are moved to the next step."""
    rows = trained(lines, step)
    one = rows[0]
    trained(lines, step + 1).extend(row for row in rows if row == one)
    leave_out(rows, lambda row: row == one)


def last_prompt(lines: Lines, step: int) -> None:
    order = [row for line in lines for entry in line["read"] for row in entry["rows"]]
    last = max((row[:3] for row in trained(lines, step)), key=order.index)
    leave_out(trained(lines, step), lambda row: row[:3] == last)


def carried_row(lines: Lines, step: int) -> None:
    """One that the step before has left over."""
    fresh = lines[step - 1]["sampled"][0]["rows"]
    one = next(row for row in trained(lines, step) if row not in fresh)
    leave_out(trained(lines, step), lambda row: row[:3] == one[:3])


def older(lines: Lines, step: int) -> None:
    """A row that is carried over was sampled with weights that were as old as a row may be."""
    fresh, sampled = lines[step - 1]["sampled"][0]["rows"], lines[step - 2]["sampled"][0]
    one = next(row for row in trained(lines, step) if row not in fresh)
    sampled["versions"][sampled["rows"].index(one)] = [[step - 4, 5]]


def nothing(lines: Lines, step: int) -> None:
    """Of a step only what it read is left."""
    lines[step - 1].update(sampled=[], dropped=[], trained=[])


def not_again(lines: Lines, step: int) -> None:
    """A prompt that the step before has left over is gone."""
    now, before = lines[step - 1]["sampled"][0], lines[step - 2]["sampled"][0]["rows"]
    one = next(row[:3] for row in now["rows"] if row in before)
    for kind in ("sampled", "dropped", "trained"):
        for entry in lines[step - 1][kind]:
            if kind == "sampled":
                entry["versions"] = [
                    v for v, row in zip(entry["versions"], entry["rows"], strict=True) if row[:3] != one
                ]
            leave_out(entry["rows"], lambda row: row[:3] == one)


def given_up(lines: Lines) -> tuple[int, list[list[Any]]]:
    """The first step in which rows that waited were too old, and which they were."""
    found = ((at, e["rows"]) for at, line in enumerate(lines) for e in line["dropped"] if e["node"] == "recent")
    return next(found)


def kept_too_long(lines: Lines) -> None:
    given_up(lines)[1].pop()


def given_up_early(lines: Lines) -> None:
    """Together with those that are too old."""
    at, rows = given_up(lines)
    rows.append(lines[at]["trained"][0]["rows"][-1][:3])


def not_asked(lines: Lines) -> None:
    """What was given up is not asked again."""
    at, [one, *_] = given_up(lines)
    lines[at]["trained"] = [{**e, "rows": [r for r in e["rows"] if r[:3] != one]} for e in lines[at]["trained"]]
    for e in lines[at]["sampled"]:
        kept = [(r, v) for r, v in zip(e["rows"], e["versions"], strict=True) if r[:3] != one]
        e["rows"], e["versions"] = map(list, zip(*kept, strict=True))


def younger_one(lines: Lines) -> None:
    """Instead of a row that has waited one is taken that waits then."""
    for line in lines:
        rows = line["trained"][0]["rows"]
        fresh = [row for each in line["sampled"] for row in each["rows"]]
        gone = {tuple(row) for each in line["dropped"] for row in each["rows"]}
        left = [row for row in fresh if row not in rows and tuple(row[:3]) not in gone]
        waited = [row for row in rows if row not in fresh]
        if left and waited:
            one, other = waited[0][:3], left[0][:3]
            leave_out(rows, lambda row, one=one: row[:3] == one)
            rows += [row for row in fresh if row[:3] == other] * 2
            return
    raise AssertionError("no step has both")


FORGED: dict[str, tuple[str, Callable[[Lines], object], str]] = {
    "a row is lost": (
        "plain",
        lambda lines: first_group(lines, 2),
        r"step 2: prompts row \d+.*, sample \d .*of `rollout` was lost: it was sampled, and neither trained on for "
        "`actor` nor dropped\nhelp: nothing in the program drops it",
    ),
    "a row of a group is missing": (
        "plain",
        lambda lines: first_row(lines, 2),
        r"(?s)step 2: prompts row \d+.*was lost.*help: others of its group were trained on",
    ),
    "a row of a group was never noted": (
        "plain",
        lambda lines: one_of_a_group(lines, 2),
        r"step 2: prompts row \d+ (\(pass 2\) )?has 2 rows of `rollout`\nhelp: a group of it has 3",
    ),
    "trained on twice": (
        "plain",
        lambda lines: again(lines, 3),
        "step 3: .* was trained on twice for `actor`\nhelp: it was in step 2 before",
    ),
    "trained on in another step": (
        "plain",
        lambda lines: later(lines, 2),
        "step 3: .* was trained on for `actor`\nhelp: it belongs to step 2",
    ),
    "trained on too seldom": (
        "plain",
        lambda lines: once_less(lines, 3),
        "step 3: .* was trained on 1 time for `actor`\nhelp: the program says 2 times",
    ),
    "trained on, and dropped": (
        "plain",
        lambda lines: dropped_row(lines, 1),
        "step 1: .* was trained on for `actor`, and had been dropped",
    ),
    "trained on, and never sampled": (
        "plain",
        lambda lines: trained(lines, 1).append(["prompts", 7, 0, 0]),
        r"step 1: prompts row 0 \(pass 8\), sample 0 was trained on for `actor`\nhelp: `rollout` never sampled it",
    ),
    "sampled twice": (
        "plain",
        lambda lines: sampled_again(lines, 3),
        "step 3: .* of `rollout` was sampled twice\nhelp: it was in step 2 before",
    ),
    "too old": (
        "plain",
        lambda lines: versions(lines, 5, (1, 3)),
        "step 5: .* of `rollout` has tokens of version 1: too old\nhelp: `staleness=2` grants versions 2 to 4 here",
    ),
    "too many updates behind": (
        "updates",
        lambda lines: versions(lines, 5, (1, 3)),
        "step 5: .* of `rollout` was 15 updates behind at the end: too old\nhelp: `staleness=11, unit=update` grants 11",
    ),
    "a step that took more updates": (
        "updates",
        lambda lines: (versions(lines, 3, (1, 3)), lines[2]["changed"].update(actor=9)),
        "step 3: .* was 12 updates behind",
    ),
    "from the future": (
        "plain",
        lambda lines: versions(lines, 3, (3, 3)),
        "step 3: .* has tokens of version 3, which did not exist yet\nhelp: before this step `actor` had changed 2 times",
    ),
    "of a change that never was": (
        "plain",
        lambda lines: lines[3].update(changed={}),
        "step 5: .* has tokens of version 4, which did not exist yet",
    ),
    "a lag that is not exact": (
        "lag",
        lambda lines: versions(lines, 4, (3, 3)),
        "step 4: .* of `rollout` is of version 3\nhelp: `lag=1` grants version 2 here, and no other",
    ),
    "versions fall": (
        "plain",
        lambda lines: versions(lines, 4, (3, 1), (2, 2)),
        "step 4: .* has tokens of versions 3, 2, one behind the other\nhelp: within a row versions rise",
    ),
    "several versions": (
        "plain",
        lambda lines: versions(lines, 4, (2, 1), (3, 2)),
        "step 4: .* has tokens of versions 2, 3\nhelp: the program grants a row one version",
    ),
    "a collect takes too few": (
        "carry",
        lambda lines: last_prompt(lines, 2),
        r"step 2: .* was not trained on for `actor`, nor were those behind it: \d of 5 rows were collected",
    ),
    "a collect takes none": (
        "drop",
        lambda lines: nothing(lines, 3),
        "step 3: .* was not trained on for `actor`, nor were those behind it: 0 of 5 rows were collected",
    ),
    "a collect leaves one out": (
        "drop",
        lambda lines: first_group(lines, 2),
        "step 2: .* was lost",
    ),
    "carried over, and too old": (
        "carry",
        lambda lines: older(lines, 5),
        "step 5: .* of `rollout` was 3 steps behind when it was trained on: too old\nhelp: `staleness=2` grants 2",
    ),
    "left over, and not asked again": (
        "later",
        lambda lines: not_again(lines, 2),
        r"step 2: prompts row \d+ was left over for `rollout`, and not asked again",
    ),
    "asked again, and not left over": (
        "later",
        lambda lines: sampled_again(lines, 2),
        "step 2: .* of `rollout` was sampled twice\nhelp: it was in step 1 before",
    ),
    "too old, and waits on": (
        "late",
        kept_too_long,
        r"step \d: prompts row \d+.* waits, is too old, and was not given up",
    ),
    "given up, and not too old": (
        "late",
        given_up_early,
        r"step \d: prompts row \d+.* was given up as too old, and is not\nhelp: `late=drop` is about rows that wait",
    ),
    "given up, and not asked again": (
        "again",
        not_asked,
        r"step \d: prompts row \d+.* was left over for `rollout`, and not asked again",
    ),
    "a batch ends twice": (
        "arrival",
        lambda lines: lines[2]["ended"].extend(lines[0]["ended"][:1]),
        "step 3: prompts row \\d+.* of a batch that is told to have ended twice\nhelp: a batch ends once, and is begun",
    ),
    "a batch ends before it is begun": (
        "arrival",
        lambda lines: lines[0]["ended"].append(["prompts", 3, 0]),
        "step 1: .* of a batch that is told to have ended\nhelp: a batch ends once, and is begun before",
    ),
    "a row of a batch that has not ended": (
        "arrival",
        lambda lines: lines[0]["ended"].pop(),
        "step 1: prompts row .* was trained on for `actor`\nhelp: it goes on with its batch, which has not ended",
    ),
    "a batch goes on for ever": (
        "arrival",
        lambda lines: lines[1].update(
            read=[*lines[1]["read"], {"node": "x", "batch": [2, 9], "rows": [["prompts", 7, 1]]}]
        ),
        "step 3: .* is of a batch that step 2 began, and that has not ended\nhelp: `late=wait` lets it go on for one",
    ),
    "batches in another order": (
        "arrival",
        lambda lines: lines[0]["ended"].reverse(),
        "step 1: prompts row .* of `rollout` was lost",
    ),
    "a younger row is taken": ("deadline", younger_one, r"step \d: prompts row .* of `rollout` was lost"),
    "a collect forgets what it carries": (
        "carry",
        lambda lines: carried_row(lines, 2),
        "step 2: .* was lost",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_honest_runs(runs: dict[str, Path], name: str) -> None:
    found = rlgraph.check_trace(runs[name])
    assert found.accepted and found.steps == STEPS and not found.cut
    assert 0 < found.trained <= found.sampled
    assert sum(found.ages.values()) == found.trained
    # In one process nothing runs ahead; what is carried over gets older.
    assert max(found.ages) == {"plain": 0, "lag": 1, "updates": 0, "carry": 1, "drop": 0, "later": 0}.get(name, 1)
    assert (found.late > 0) == (name in ("late", "again"))


@pytest.mark.parametrize("fault", FORGED)
def test_forged_ones(runs: dict[str, Path], fault: str, tmp_path: Path) -> None:
    name, change, message = FORGED[fault]
    found = rlgraph.check_trace(forged(runs[name], tmp_path / "run", change))
    said = "\n".join(each.render() for each in found.diagnostics)
    assert not found.accepted and re.search(message, said), said


def test_what_cannot_be_read(runs: dict[str, Path], tmp_path: Path) -> None:
    honest = (runs["plain"] / TRACE).read_text()
    path = forged(runs["plain"], tmp_path / "run", lambda lines: None)

    def said(text: str) -> str:
        (path / TRACE).write_text(text)
        with pytest.raises(ProgramError) as error:
            rlgraph.check_trace(path)
        return str(error.value)

    lines = honest.splitlines(keepends=True)
    assert "no step is whole" in said("") and "no step is whole" in said(lines[0][:-1])
    assert "it is of step 3, and that of step 2 is missing" in said(lines[0] + lines[2])
    for damaged in (
        "\0" + lines[1],
        "[]\n",
        lines[1].replace('"rows"', '"row"'),
        lines[1].replace('"versions": [', '"versions": [[[1, 1]], '),
        lines[1].replace('["prompts", ', "["),
        lines[1].replace('"phase": "step"', '"phase": "other"'),
        lines[1].replace('"node": "rollout", "rows"', '"node": "other", "rows"'),
    ):
        assert damaged != lines[1] and "line 2 of" in said(lines[0] + damaged), damaged
    (path / TRACE).unlink()
    with pytest.raises(ProgramError, match=r"E0822.*trace.jsonl` cannot be read: no such file"):
        rlgraph.check_trace(path)
    with pytest.raises(ProgramError, match="E0822.*is no folder of a run"):
        rlgraph.check_trace(tmp_path)
    graph = (path / "graph.txt").read_text()
    (path / "graph.txt").write_text(graph.replace(", staleness=2}", "}"))
    with pytest.raises(ProgramError, match="(?s)E0822.*keeps no trace.*has no `step async`"):
        rlgraph.check_trace(path)


def test_the_command(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["trace", "check", str(runs["lag"])]) == 0
    assert capsys.readouterr().out.startswith("accepted: 5 steps, 60 rows sampled, ")
    # A run that was killed while it wrote: what it had done before is checked.
    path = forged(runs["plain"], tmp_path / "run", lambda lines: again(lines, 3))
    text = (path / TRACE).read_text()
    (path / TRACE).write_text(text[:-50])
    assert run_command(["trace", "check", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "E0824]: step 3: " in err and out.splitlines()[-1].startswith("the run was killed") and "step 4" in out
    assert run_command(["trace", "check", str(path), "--message-format", "json"]) == 1
    told, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (told["code"], last["type"], last["accepted"], last["steps"], last["cut"]) == (
        "E0824",
        "trace",
        False,
        4,
        True,
    )
    assert run_command(["trace", "check", str(tmp_path)]) == 1


def test_a_run_that_is_replayed_says_the_same(runs: dict[str, Path], tmp_path: Path) -> None:
    data = runs["carry"].parent
    (data / "program.rlf").write_text(PROGRAMS["carry"])
    compiled = rlgraph.compile(data / "program.rlf")
    first = compiled.run(steps=3, out=tmp_path / "a", record=tmp_path / "rec", threads=1, progress=False)
    second = compiled.run(steps=3, out=tmp_path / "b", replay=tmp_path / "a", block=1, threads=1, progress=False)
    for one, other in zip(first.metrics, second.metrics, strict=True):
        assert one | {"seconds": 0} == pytest.approx(other | {"seconds": 0}, rel=1e-9)
    assert rlgraph.check_trace(tmp_path / "a") == rlgraph.check_trace(tmp_path / "b")
