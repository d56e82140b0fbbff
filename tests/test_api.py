"""rlgraph from Python: check, compile, run, functions."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from programs_on_disk import FAILS_AT_THIRD, PROGRAM, write_tiny

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.cli.base import interrupted_code
from rlgraph.errors.arguments import check_arguments, known_arguments
from rlgraph.runs.events import EventReader, Opening, WorkDone, WorkStarted
from tests.interrupting import ctrl_c


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def test_import_loads_nothing() -> None:
    script = "import sys, rlgraph; print(sorted(n for n in sys.modules if n.split('.')[0] in ('torch', 'ray', 'lark', 'click')))"
    environment = {**os.environ, "PYTHONPATH": str(Path(rlgraph.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, text=True, capture_output=True)
    assert done.stdout == "[]\n"


# check and compile


def test_check_never_raises(folder: Path) -> None:
    assert rlgraph.check(PROGRAM) == rlgraph.check("tiny.rlf") == rlgraph.check(folder / "tiny.rlf") == []
    for program in ("", "tiny", "missing.rlf", Path("tiny"), folder, "step:\n\tx", "\0", "x = (" * 500):
        assert any(found.severity == "error" for found in rlgraph.check(program))
    assert [found.code for found in rlgraph.check(PROGRAM, {"n": object()})] == ["E0807"]  # type: ignore[dict-item]
    assert [found.code for found in rlgraph.check(PROGRAM, ["n=1"])] == ["E0807"]  # type: ignore[arg-type]
    assert [found.code for found in rlgraph.check(PROGRAM, {"m": 1})] == ["E0804"]
    assert [found.code for found in rlgraph.check(PROGRAM, {"n": "1 +", "lr": ")"})] == ["E0101", "E0103"]


def test_a_length_is_a_number_or_a_text() -> None:
    assert rlgraph.workload(300, 4.5, turns=3) == rlgraph.workload("300", "4.5", turns="3") != rlgraph.workload()


def test_warnings_do_not_stop_a_program() -> None:
    program = PROGRAM.replace("param lr", "param unused = 1\nparam lr")
    (found,) = rlgraph.check(program)
    assert (found.severity, found.message) == ("warning", "param `unused` is never used")
    assert rlgraph.compile(program).diagnostics == (found,)


def test_compile_raises_everything_at_once() -> None:
    with pytest.raises(rlgraph.ProgramError) as wrong:
        rlgraph.compile(
            PROGRAM.replace("rollout.", "rolout.").replace("reward)", "rewrd)").replace("n=n", "n=m"), name="<mine>"
        )
    assert len(wrong.value.diagnostics) >= 2
    assert "--> <mine>:" in str(wrong.value)
    # Notebooks show this in place of a traceback.
    assert wrong.value._render_traceback_() == str(wrong.value).splitlines()


def test_a_compiled_program() -> None:
    found = rlgraph.compile("tiny.rlf")
    assert (found.name, found.folder, found.diagnostics, found.set) == ("tiny", Path(), (), {})
    assert [stage.name for stage in found.stages][0] == "check"
    assert found.after(found.stages[-1].name) is found.program
    assert found.graph is found.program.phases[-1].graph
    assert found.text("check") != found.text() and found.text().startswith("program tiny\n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.folder = Path("/")  # type: ignore[misc]


def test_pictures_and_what_a_notebook_shows(capsys: pytest.CaptureFixture[str]) -> None:
    found = rlgraph.compile("tiny.rlf")
    assert found.to_dot().startswith("digraph") and "<svg" in found.to_svg() and "<svg" in found.to_html()
    assert found.to_png().startswith(b"\x89PNG")
    first, second = found._repr_mimebundle_(), found._repr_mimebundle_()
    assert set(first) == {"image/svg+xml", "text/html", "text/plain"}
    assert first["text/plain"].startswith("tiny: ")
    # Two pictures on one page share no id.
    assert first["image/svg+xml"] != second["image/svg+xml"]
    found.show()
    assert capsys.readouterr().out == found.text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.5, "0.5"),
        (1e-06, "1e-06"),
        (-1, "-1"),
        (True, "true"),
        ("n + 1", "n + 1"),
        (Path('a "b"\\c'), '"a \\"b\\"\\\\c"'),
        ([1, Path("a")], '[1, "a"]'),
    ],
)
def test_values_from_python_are_expressions(value: Any, text: str) -> None:
    from rlgraph.passes.compilation.read_program import parse_settings, settings_as_text

    assert settings_as_text({"x": value}) == {"x": text}
    assert parse_settings({"x": text})


def test_a_setting_changes_the_program() -> None:
    assert "n=7, " in rlgraph.compile(PROGRAM, set={"n": 7}).text()
    assert rlgraph.compile(PROGRAM, set={"prompts": 'jsonl("prompts.jsonl", batch=3)'}).set == {
        "prompts": 'jsonl("prompts.jsonl", batch=3)'
    }


# run


def test_paths_begin_at_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    run = rlgraph.compile("../tiny.rlf").run(1, progress=False)
    assert list(run.metrics[0]) == ["step", "seconds", "reward", "mismatch/kl", "mismatch/max"]
    assert (run.folder, run.saved) == (None, [])
    assert list((folder / "elsewhere").iterdir()) == []


def _look_up_what_is_not_there(run: rlgraph.Run, compiled: Compiled) -> None:
    lookups: list[tuple[Callable[[], object], str]] = [
        (lambda: run.models["actr"], "the run has no model `actr`: did you mean `actor`? it has `actor`"),
        (lambda: run.models[0], "the run has no model `0`: it has `actor`"),  # type: ignore[index]
        (
            lambda: run.metrics[2]["rewrad"],
            "the step has no metric `rewrad`: did you mean `reward`? it has `step`, `seconds`, `reward`, ",
        ),
        (lambda: compiled.set["n"], "the compiled program has no replaced setting `n`: it has nothing"),
        (lambda: compiled.after("fold"), "the compiled program has no pass `fold`: it has `check`, `simplify`, "),
        (lambda: compiled.plan.group("hots"), "the plan has no group `hots`: did you mean `host`? it has `"),
        (lambda: compiled.program.model("actr"), "the program has no model `actr`: did you mean `actor`? it has `acto"),
    ]
    for look_up, message in lookups:
        with pytest.raises(rlgraph.ProgramError) as wrong:
            look_up()
        (found,) = wrong.value.diagnostics
        assert f"{found.message}: {found.hint}".startswith(message) and found.code == "E0898"
        assert isinstance(wrong.value, KeyError) and str(wrong.value) == found.render()
        assert str(pickle.loads(pickle.dumps(wrong.value))) == str(wrong.value)
    assert "n" not in compiled.set and run.models.get("actr") is None
    copied = pickle.loads(pickle.dumps(run.metrics))
    assert copied == run.metrics
    with pytest.raises(rlgraph.ProgramError, match="the step has no metric `x`"):
        copied[0]["x"]


def test_a_run(folder: Path) -> None:
    program = rlgraph.compile("tiny.rlf")
    before = torch.get_num_threads()
    run = program.run(3, out="here", threads=1, seed=5, progress=False)
    assert torch.get_num_threads() == before
    assert (len(run.metrics), run.folder, run.saved) == (3, Path("here"), [Path("here/models/actor")])
    assert run.models["actor"].updates == 3
    answers = run.models["actor"].answer(["a>", "ba>"], max_tokens=5)
    assert len(answers) == 2 and all(len(answer) <= 5 for answer in answers)
    _look_up_what_is_not_there(run, program)
    again = program.run(3, seed=5, threads=1, progress=False)
    other = program.run(3, seed=6, threads=1, progress=False)
    rewards = [[step["reward"] for step in found.metrics] for found in (run, again, other)]
    assert rewards[0] == rewards[1] != rewards[2]
    # The saved folder is a model source: it goes on where it ended.
    more = rlgraph.compile("tiny.rlf", set={"actor": 'causal_lm("here/models/actor")'}).run(
        1, threads=1, progress=False
    )
    assert more.models["actor"].answer(["a>"], max_tokens=5)


def test_an_answer_is_to_each_prompt_of_a_list(folder: Path) -> None:
    model = rlgraph.compile("tiny.rlf").run(0, threads=1, progress=False).models["actor"]
    assert len(model.answer(("a>", "b>"), max_tokens=2)) == 2
    # A text is a sequence of letters, and a conversation one of messages.
    for one in ("a>", [{"role": "user", "content": "a>"}]):
        with pytest.raises(rlgraph.ProgramError, match="E0894.*`prompts` is a list of prompts, each a text or"):
            model.answer(one)
    for wrong in ({"prompts": ["a>", 3]}, {"max_tokens": 0}, {"temperature": -1}, {"temperature": "0"}):
        with pytest.raises(rlgraph.ProgramError, match=f"E0894.*`{next(iter(wrong))}` is a"):
            model.answer(**{"prompts": ["a>"], **wrong})
    for prompt, code in (([{"role": "user", "content": "a>"}], "E0731"), ([3], "E0732"), ("a>" * 99, "E0748")):
        with pytest.raises(rlgraph.RunError, match=f"{code}.*`actor` cannot answer: "):
            model.answer([prompt])


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1}, "`steps` is a whole number, at least 0, not -1"),
    ({"steps": "3"}, "`steps` is a whole number, at least 0, not '3'"),
    ({"steps": True}, "`steps` is a whole number, at least 0, not True"),
    ({"steps": None}, "`steps` is a whole number, at least 0, not None"),
    ({"seed": 1.5}, "`seed` is a whole number, not 1.5"),
    ({"threads": 0}, "`threads` is a whole number, at least 1, not 0"),
    ({"block": 0}, "`block` is a whole number, at least 1, not 0"),
    ({"keep": 0, "save_every": 1}, "`keep` is a whole number, at least 1, not 0"),
    ({"max_restarts": -1}, "`max_restarts` is a whole number, at least 0, not -1"),
    ({"timeout": 0}, "`timeout` is a number of seconds above 0, not 0"),
    ({"on_nonfinite": "ignore"}, '`on_nonfinite` is "stop" or "skip", not \'ignore\''),
    ({"device": 0}, '`device` is a text such as "cpu" or "cuda:1", not 0'),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS, ids=[str(options) for options, _ in WRONG_OPTIONS])
def test_an_option_of_another_kind_is_refused_before_anything_is_written(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rlgraph.ProgramError) as wrong:
        rlgraph.compile("tiny.rlf").run(out="made", progress=False, **options)
    assert str(wrong.value).strip() == f"error[E0894]: {message}"
    assert not (folder / "made").exists()


WRONG_ARGUMENTS: list[tuple[str, str]] = [
    ("rlgraph.compile(3)", "E0894]: `program` is a path, the name of an algorithm, or the text of a program, not 3"),
    ("rlgraph.compile('prompts.jsonl')", "E0805]: `prompts.jsonl` is a file of data, not a program"),
    ("rlgraph.compile(None)", "E0894]: `program` is a path"),
    ("rlgraph.compile('tiny.rlf', {3: 3})", "E0807]: `set` is a dict of names and values"),
    ("rlgraph.compile('tiny.rlf', {'score': print})", "E0807]: `score` cannot be set to <built-in function print>"),
    (
        "rlgraph.compile('tiny.rlf', {'rows': __import__('pandas').DataFrame({'prompt': ['a']})})",
        "E0807]: `rows` cannot be set to prompt 0 a: that is no value of the language\n"
        "help: rows are in a file: `to_json(",
    ),
    ("rlgraph.compile('tiny.rlf', schedule=3)", "E0894]: `schedule` is a path, or the text of a schedule, not 3"),
    ("rlgraph.compile('tiny.rlf', cluster=8)", 'E0894]: `cluster` is a text such as "1x8:h100-80gb", or a cluster'),
    ("rlgraph.compile('tiny.rlf', cluster='1x1:cpu', workload={})", "E0894]: `workload` is what `rlgraph.workload"),
    ("rlgraph.compile('tiny.rlf', cluster='1x1:cpu', offload='no')", "E0894]: `offload` is True or False, not 'no'"),
    ("rlgraph.compile('tiny.rlf', cluster='1x1:cpu', search_gap='x')", "E0894]: `search_gap` is a share from 0 to 1"),
    ("rlgraph.compile('tiny.rlf', minimize='cost')", "E0895]: `minimize` is for the search for a plan"),
    ("rlgraph.load_plan(3)", "E0894]: `path` is a path, not 3"),
    ("rlgraph.functions(3)", "E0894]: `program` is a path"),
    ("rlgraph.workload([3])", "E0894]: `prompt_tokens` is a number of tokens, or a text"),
    ("rlgraph.workload(kept=2)", "E0894]: `kept` is a share above 0, up to 1, not 2"),
    ("rlgraph.simulate('tiny.rlf')", "E0894]: `compiled` is what `rlgraph.compile(...)` returns, not 'tiny.rlf'"),
    ("rlgraph.simulate(tiny, 8)", "E0894]: `cluster` is a text"),
    ("rlgraph.check_trace(3)", "E0894]: `folder` is a path, not 3"),
    ("tiny.explain()", "E0895]: without a cluster no plan is chosen"),
    ("tiny.what_if(3)", "E0894]: `sweep` is a text"),
    ("tiny.plan_json(3)", "E0894]: `beside` is a path"),
    ("tiny.to_svg(picture='data')", 'E0894]: `picture` is "dataflow" or "plan" or "pipelines", not \'data\''),
    ("tiny.to_dot('pipelines')", "E0894]: `picture` is of a graph here"),
    ("tiny.to_png('no/x.png')", "E0963]: the picture `no/x.png` cannot be written: no such file"),
    ("tiny.run(out=3)", "E0894]: `out` is a path, not 3"),
    ("tiny.run(track=3)", "E0894]: `track` is the name of a tracker, or a list of such, not 3"),
    ("tiny.run(progress='no')", "E0894]: `progress` is True or False, not 'no'"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_ARGUMENTS, ids=[call for call, _ in WRONG_ARGUMENTS])
def test_an_argument_of_another_kind_is_told_of(call: str, message: str) -> None:
    with pytest.raises(rlgraph.ProgramError) as wrong:
        eval(call, {"rlgraph": rlgraph, "tiny": rlgraph.compile("tiny.rlf")})
    assert str(wrong.value).startswith(f"error[{message}")


def test_whatever_is_given_for_an_argument_nothing_else_is_raised() -> None:
    """The kinds are tests of any value; no argument is a dict."""
    for name in known_arguments():
        for value in (3, -1, 1.5, "x", b"x", [3], object(), float("nan"), True, torch.zeros(2), Path("x")):
            with contextlib.suppress(rlgraph.ProgramError):
                check_arguments(**{name: value})
        with pytest.raises(rlgraph.ProgramError, match=f"`{name}` is "):
            check_arguments(**{name: {"a": 3}})


def test_a_run_in_a_folder_with_content_does_not_begin(folder: Path) -> None:
    with pytest.raises(rlgraph.ProgramError, match="E0810"):
        rlgraph.compile("tiny.rlf").run(1, out=folder, progress=False)


def test_phases_are_named_in_the_metrics() -> None:
    first, step = PROGRAM.split("step:\n")
    warm = "phase warm(steps=2):\n    early = actor.generate(prompts, n=2, max_tokens=2)\n    report reward = mean(score(early))\n\n"
    run = rlgraph.compile(f"{first}{warm}step:\n{step}").run(1, progress=False)
    assert [(record["step"], record["phase"]) for record in run.metrics] == [(1, "warm"), (2, "warm"), (3, "step")]


def test_a_failure_saves_what_was_trained(folder: Path) -> None:
    write_tiny(folder, rewards=FAILS_AT_THIRD)
    with pytest.raises(rlgraph.RunError, match="the judge is asleep"):
        rlgraph.compile("tiny.rlf").run(9, out="here", progress=False)
    assert (folder / "here/models/actor/config.json").exists()


def test_a_model_that_has_diverged_is_no_result(folder: Path) -> None:
    for debug in (False, True):
        program = rlgraph.compile("tiny.rlf", set={"lr": "1e30"})
        with pytest.raises(
            rlgraph.RunError, match=r"E0831.*`actor` has diverged: .* has weights that are NaN, infinite"
        ):
            program.run(1, progress=False, threads=1, debug=debug, backend="ray" if debug else "local")


class Signals(EventReader):
    """Sends a signal to this process when a node of a kind begins for the second time."""

    def __init__(self, op: str, number: int = signal.SIGINT) -> None:
        self.op, self.number, self.seen, self.done = op, number, 0, 0

    def work_started(self, event: WorkStarted) -> None:
        if event.node.op == self.op:
            self.seen += 1
            if self.seen == 2:
                ctrl_c(self.number)

    def work_done(self, event: WorkDone) -> None:
        self.done += event.node.op == self.op


@pytest.mark.parametrize(
    ("op", "number", "done", "updates"), [("generate", signal.SIGINT, 1, 1), ("train", signal.SIGTERM, 2, 2)]
)
def test_ctrl_c_waits_for_an_update_and_for_nothing_else(
    op: str, number: int, done: int, updates: int, folder: Path
) -> None:
    watch = Signals(op, number)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(rlgraph.Interrupted) as stopped:
        rlgraph.compile("tiny.rlf").run(5, out="here", progress=False, on_event=watch)
    run = stopped.value.run
    assert interrupted_code(stopped.value) == 128 + number
    assert (watch.done, run.models["actor"].updates, len(run.metrics)) == (done, updates, 1)
    assert run.saved == [Path("here/models/actor")]
    shown = stopped.value._render_traceback_()
    assert shown[0] == "interrupted after 1 step" and "`sys.last_value.run`" in shown[-1]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_run_that_fails_leaves_what_was_done(folder: Path) -> None:
    write_tiny(folder, rewards=FAILS_AT_THIRD)
    with pytest.raises(rlgraph.RunError) as failed:
        rlgraph.compile("tiny.rlf").run(9, progress=False)
    run = failed.value.run
    assert len(run.metrics) == 2 and run.models["actor"].answer(["a>"], max_tokens=1)
    assert "`sys.last_value.run`" in failed.value._render_traceback_()[-1]


def test_ctrl_c_before_the_first_step_leaves_a_run_that_is_resumed_as_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = rlgraph.compile("tiny.rlf")
    program.run(1, out="here", save_every=1, progress=False)

    def stop(event: object) -> None:
        if isinstance(event, Opening):
            ctrl_c()

    with pytest.raises(rlgraph.Interrupted, match="interrupted before its first step was over") as stopped:
        program.run(2, resume="here", progress=False, on_event=stop)
    assert "go on from step 1 with `rlgraph resume here`" in stopped.value.run.notes
    assert len(program.run(2, resume="here", progress=False).metrics) == 2


def test_a_second_ctrl_c_does_not_wait_for_saving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlgraph.backends.engines.transformers.engine import TransformersEngine

    def save(self: TransformersEngine, path: Path) -> None:
        ctrl_c(signal.SIGTERM)
        raise AssertionError("the second signal ends this")

    monkeypatch.setattr(TransformersEngine, "save", save)
    with pytest.raises(KeyboardInterrupt) as stopped:
        rlgraph.compile("tiny.rlf").run(5, out="here", progress=False, on_event=Signals("generate"))
    assert not isinstance(stopped.value, rlgraph.Interrupted) and interrupted_code(stopped.value) == 143
    assert list((folder / "here/models").iterdir()) == []


def test_a_run_in_a_thread_leaves_signals_alone() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(rlgraph.compile("tiny.rlf").run(1, progress=False)))
    thread.start()
    thread.join()
    assert len(made[0].metrics) == 1


# functions


def test_the_prelude_on_tensors() -> None:
    std = rlgraph.functions("std")
    assert {"gae", "whiten", "k1", "k2", "k3", "center", "normalize", "leave_one_out"} <= set(std)
    reward, value = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    found = std.gae(reward, value, 0.9, lam=0.8, mask=mask)
    delta = reward[0, 1] - value[0, 1]
    first = reward[0, 0] + 0.9 * value[0, 1] - value[0, 0] + 0.9 * 0.8 * delta
    torch.testing.assert_close(found[0], torch.stack([first, delta, torch.zeros_like(delta)]))
    found.sum().backward()
    assert value.grad is not None and value.grad[0, 2] == 0
    assert str(std.gae.__signature__) == "(reward, value, gamma, lam, *, mask=None)"
    assert std.gae.__doc__ is not None and std.gae.__doc__.startswith("# Generalised advantage estimation")


def test_groups_are_numbers_of_rows() -> None:
    std = rlgraph.functions()
    x, group = torch.tensor([1.0, 3.0, 5.0, 0.0, 7.0]), torch.tensor([8, 8, 2, 2, 5])
    torch.testing.assert_close(std.center(x, group), torch.tensor([-1.0, 1.0, 2.5, -2.5, 0.0]))
    torch.testing.assert_close(std.leave_one_out(x, group), torch.tensor([-2.0, 2.0, 5.0, -5.0, 0.0]))
    tokens, mask = torch.tensor([[1.0, 9.0], [2.0, 3.0]]), torch.tensor([[1, 0], [1, 1]])
    torch.testing.assert_close(
        std.center(tokens, torch.tensor([4, 4]), mask=mask), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    )


def test_the_defs_of_a_file(folder: Path) -> None:
    (folder / "mine.rlf").write_text(
        'algorithm mine\n\nparam weight = 2\nmodel actor = causal_lm("a")\n\n'
        "def penalty(x, group):\n    m = mean(x, by=group)\n    return weight * k1(x, m)\n\n"
        "def best(x, group):\n    return max(x, by=group)\n\n"
        "def one():\n    return 1\n\n"
        "def hidden(mask):\n    return mask + 1\n\n"
        "def alive(rollout):\n    return actor.logprobs(rollout)\n"
    )
    mine = rlgraph.functions(folder / "mine.rlf", set={"weight": 3})
    assert list(mine) == ["penalty", "best", "one", "hidden", "alive"] and "best" in dir(mine)
    x, group = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1, 1, 0])
    torch.testing.assert_close(mine.penalty(x, group), torch.tensor([-1.5, 1.5, 0.0]))
    # A result for each group, in the order of their numbers.
    torch.testing.assert_close(mine.best(x, group), torch.tensor([6.0, 2.0]))
    assert mine.one().item() == 1 and mine.hidden(mask=2.0).item() == 3
    with pytest.raises(rlgraph.ProgramError, match="`actor` is a model: it lives in a run"):
        mine.alive(x)
    with pytest.raises(AttributeError, match="has no function penality: did you mean `penalty`?"):
        mine.penality  # noqa: B018
    with pytest.raises(TypeError, match=r"penalty\(x, group, \*, mask=None\): missing a required argument: 'group'"):
        mine.penalty(x)
    # Equal numbers are a group, whatever they are.
    torch.testing.assert_close(mine.penalty(x, torch.tensor([0.5, 1.0, 0.5])), torch.tensor([-7.5, 0.0, 7.5]))
    with pytest.raises(ValueError, match="does not fit"):
        mine.penalty(x[:2], group)


def test_functions_of_a_wrong_file(folder: Path) -> None:
    (folder / "wrong.rlf").write_text("algorithm wrong\n\nparam a = b\n\ndef f(x):\n    return x\n")
    with pytest.raises(rlgraph.ProgramError, match="nothing is called `b`"):
        rlgraph.functions("wrong.rlf")


def test_a_compiled_program_is_exported() -> None:
    assert rlgraph.Compiled is Compiled
    assert set(rlgraph.__all__) <= set(dir(rlgraph))
    with pytest.raises(AttributeError, match="module 'rlgraph' has no attribute 'nothing'"):
        rlgraph.nothing  # noqa: B018


@pytest.mark.parametrize("option", [{"address": "auto"}, {"debug": True}], ids=lambda each: next(iter(each)))
def test_an_option_for_processes_is_refused_where_there_are_none(option: dict[str, Any]) -> None:
    with pytest.raises(rlgraph.ProgramError) as wrong:
        rlgraph.compile(PROGRAM).run(steps=1, **option)
    name = next(iter(option))
    assert wrong.value.diagnostics[0].message == f"`{name}` is for a backend with processes, and `local` has none"


@pytest.mark.parametrize("devices", [0, -1, True, 1.0, "8", 1 << 21])
def test_a_number_of_devices_that_cannot_be(devices: object) -> None:
    with pytest.raises(rlgraph.ProgramError, match="error\\[E0902\\]: `devices` is a whole number from 1 to 1,048,576"):
        rlgraph.compile(PROGRAM, devices=devices)  # type: ignore[arg-type]


def test_what_is_public_is_what_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "python.md").read_text("utf-8")
    table = page.split("## All names")[1]
    documented = {
        name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`rlgraph\.(\w+)`", line)
    }
    assert documented - {"rewards"} == set(rlgraph.__all__)
    assert all(getattr(rlgraph, name) is not None for name in rlgraph.__all__)
