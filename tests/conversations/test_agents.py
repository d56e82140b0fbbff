"""Agents: functions that ask the model themselves, over HTTP. What they are answered is what the model learns from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from tiny import EPS, Run, Seen, compile_text

import rlgraph
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.worker import agent_episodes
from rlgraph.backends.worker.action_sampling import ActionSampling
from rlgraph.backends.worker.agent_play import AgentPlay
from rlgraph.errors import Diagnostic, ProgramError, RunError

SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}{% endfor %}"
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
CLIENT = '''
import json, os, signal, time, urllib.error, urllib.request

def post(path, **body):
    """What the server answers, or the error that it sends."""
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked) as answer:
            return json.loads(answer.read()) if not body.get("stream") else answer.read().decode()
    except urllib.error.HTTPError as error:
        return json.loads(error.read())

def chat(messages, **options):
    return post("/chat/completions", messages=messages, max_tokens=6, return_token_ids=True, logprobs=True, **options)

def user(text):
    return {"role": "user", "content": text}
'''
TALK = '''
def solve(row, seed):
    """Three turns, each with what was said before."""
    messages, made, chances = [user(row["question"])], 0, 0.0
    for turn in range(3):
        choice = chat(messages)["choices"][0]
        made += len(choice["token_ids"])
        chances += sum(token["logprob"] for token in choice["logprobs"]["content"])
        messages += [choice["message"], user("and")]
    return {"reward": float(seed % 5), "made": made, "chances": chances}
'''


def program(folder: Path, solve: str, *, options: str = "", rows: int = 2, n: int = 2, turns: int = 8) -> str:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = TEMPLATE
    Codec(tokenizer).save(folder / "small")
    lines = [json.dumps({"question": f"{number}?"}) + "\n" for number in range(rows)]
    (folder / "rows.jsonl").write_text("".join(lines), "utf-8")
    (folder / "bot.py").write_text(CLIENT + solve, "utf-8")
    return f"""algorithm t
model actor = causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=2048, tokenizer="small"))
model ref = frozen(actor)
data rows = jsonl("rows.jsonl", batch={rows}, shuffle=false)
env bot = agent("bot.py:solve", workers=3{options})
step:
    episode = actor.interact(bot, rows, n={n}, max_turns={turns}, max_tokens=400)
    gain = sum(episode.reward, turn)
    new = ref.logprobs(episode)
    report off = max(max(abs(new - episode.logprobs), token)), gain = mean(gain), turns = mean(episode.turns)
    report finished = sum(episode.finished), died = sum(episode.died), stalled = sum(episode.stalled)
    report requests = sum(episode.requests), refused = sum(episode.refused)
    train actor(lr=0.01, eps={EPS}):
        minimize mean(-actor.logprobs(episode) * center(gain, rows))
"""


RETURNS = ', returns=["reward", "made", "chances"]'


def play(folder: Path, solve: str, steps: int = 1, **named: Any) -> list[Seen]:
    settings = {name: named.pop(name) for name in ("record", "replay") if name in named}
    return Run(compile_text(program(folder, solve, **named)), folder, **settings).steps(steps)


def test_what_an_agent_was_answered_is_what_the_model_learns_from(tmp_path: Path) -> None:
    """Tokens and log-probabilities are those of the answers, and of the engine for the tokens of the episode."""
    (seen,) = play(tmp_path, TALK, options=RETURNS)
    table = seen.table("episode")
    # Before it is trained, the model is the one of which it is a copy.
    assert 0 < seen.metrics["off"] < 1e-5 and seen.metrics["turns"] == 3 and seen.metrics["finished"] == 4
    scored = [sum(flags) for flags in table.scored]
    assert scored == table.columns["made"].tolist() and min(scored) > 3
    assert [float(part.sum()) for part in table.columns["logprobs"].split(scored)] == pytest.approx(
        table.columns["chances"].tolist(), abs=1e-5
    )
    code = build_tokenizer(ByteTokenizer())
    bare = [token for token, own in zip(table.tokens[0], table.scored[0], strict=True) if not own]
    assert str(code.decode(bare)).replace("<eos>", "") == "<user>0?<assistant>" + 2 * "<user>and<assistant>"


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an engine that takes rows while it samples others, from any thread."""
    one_at_a_time, plain = Lock(), ActionSampling.sample

    def sample(how: ActionSampling, *given: Any) -> Any:
        with one_at_a_time:
            return plain(how, *given)

    monkeypatch.setattr(ActionSampling, "takes_rows_meanwhile", True)
    monkeypatch.setattr(ActionSampling, "sample", sample)


def test_requests_that_are_answered_as_they_come_are_answered_the_same(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (rounds,) = play(tmp_path, TALK, rows=4, options=RETURNS)
    request.getfixturevalue("joining")
    (seen,) = play(tmp_path, TALK, rows=4, options=RETURNS)
    assert seen.table("episode").tokens == rounds.table("episode").tokens
    assert seen.metrics["requests"] == 24 and seen.metrics["off"] < 1e-5


def test_of_no_rows_nothing_is_asked(joining: None, tmp_path: Path) -> None:
    head = program(tmp_path, TALK).partition("step:")[0]
    step = "step:\n    keep rows where uniform(rows) > 2\n    episode = actor.interact(bot, rows, max_turns=2, max_tokens=9)\n"
    text = head.replace("model ref = frozen(actor)\n", "") + step + "    report requests = sum(episode.requests)\n"
    (seen,) = Run(compile_text(text), tmp_path).steps(1)
    assert seen.metrics["requests"] == 0


def test_what_fails_in_a_thread_that_samples_ends_the_run(
    joining: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(how: ActionSampling, *given: Any) -> Any:
        raise RunError(Diagnostic("E0733", "nothing can be sampled", how.node.span))

    monkeypatch.setattr(ActionSampling, "sample", sample)
    with pytest.raises(RunError, match="nothing can be sampled"):
        play(tmp_path, TALK, options=RETURNS)


def test_a_recording_is_played_again(tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    with claim_folder(folder, "t", 0):
        first = play(tmp_path, TALK, 2, options=RETURNS, record=folder)
    again = play(tmp_path, TALK, 2, options=RETURNS, replay=folder)
    assert [step.table("episode").tokens for step in again] == [step.table("episode").tokens for step in first]
    assert [step.metrics["gain"] for step in again] == [step.metrics["gain"] for step in first]


@pytest.mark.parametrize("joins", [False, True])
def test_an_episode_that_dies_or_floods_costs_itself_alone(
    joins: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One is killed, one raises, one asks without end; the others have what they have without these."""
    ends = """
def bad(row):
    chat([user("first")])
    if row["question"] == "1?":
        os.kill(os.getpid(), signal.SIGKILL)
    if row["question"] == "2?":
        raise LookupError("nothing there")
    while row["question"] == "3?":
        chat([user("first")])
    return solve(row, 7)["reward"]
"""
    if joins:
        request.getfixturevalue("joining")
    alone = play(
        tmp_path,
        TALK.replace("solve", "inner") + "\ndef solve(row, seed):\n    return inner(row, 7)['reward']\n",
        rows=5,
        n=1,
    )
    text = TALK.replace("solve", "inner") + ends.replace("solve(", "inner(").replace("bad(row)", "solve(row)")
    text = text.replace(
        '    chat([user("first")])\n    if',
        '    if row["question"] in "1?2?3?":\n        chat([user("first")])\n    if',
        1,
    )
    (seen,) = play(tmp_path, text, rows=5, n=1, options=", failed=-1")
    table, other = seen.table("episode"), alone[0].table("episode")
    assert table.columns["died"].tolist() == [False, True, True, True, False]
    assert table.columns["finished"].tolist() == [True, False, False, False, True]
    assert [table.tokens[place] for place in (0, 4)] == [other.tokens[place] for place in (0, 4)]
    assert table.columns["refused"].tolist()[3] == 64
    assert table.columns["reward"].tolist()[3:6] == [-1.0, -1.0, -1.0]


def test_an_episode_that_never_ends_is_ended_when_it_has_had_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still until all others are over."""

    class Late(AgentPlay):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given[:4], self.late)

        def late(self) -> float:
            return 1e6 if sum(not episode.over for episode in self.episodes) == 1 else 0.0

    monkeypatch.setattr(agent_episodes, "AgentPlay", Late)
    solve = TALK.replace(
        "    messages, made", '    while row["question"] == "1?":\n        time.sleep(0.01)\n    messages, made'
    )
    (seen,) = play(tmp_path, solve, rows=3, n=1, options=RETURNS)
    assert seen.table("episode").columns["stalled"].tolist() == [False, True, False]
    assert seen.metrics["died"] == 0 and seen.table("episode").columns["turns"].tolist() == [3, 0, 3]


def test_an_agent_that_has_never_come_to_its_end_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"E0857.*all of its first 8 episodes.*KeyError: 'anwser', line \d+ of `bot.py`"):
        play(tmp_path, "def solve(row):\n    return row['anwser']\n", rows=4)


BRANCHES = """
def solve(row):
    first = chat([user("a")])["choices"][0]["message"]
    other = chat([user("b")])
    last = chat([user("a"), first, user("c")])
    return {"reward": 0, "answered": "choices" in other, "why": "does not go on" in str(other)}
"""


@pytest.mark.parametrize(("branches", "answered"), [("refuse", 0), ("skip", 1)])
def test_a_request_that_does_not_go_on_is_refused_or_not_learned_from(
    branches: str, answered: int, tmp_path: Path
) -> None:
    options = f', returns=["reward", "answered", "why"], branches={branches}'
    (seen,) = play(tmp_path, BRANCHES, rows=1, n=1, options=options)
    columns = seen.table("episode").columns
    assert (columns["answered"].tolist(), columns["why"].tolist()) == ([answered], [1 - answered])
    assert columns["turns"].tolist() == [2] and columns["requests"].tolist() == [2 + answered]
    assert "<user>c" in build_tokenizer(ByteTokenizer()).decode(seen.table("episode").tokens[0])


REFUSALS = """
def solve(row):
    good = chat([user("a")])
    again = [user("a"), good["choices"][0]["message"], user("b")]
    found = [
        post("/chat/completions", messages=[]),
        chat(again, response_format={"type": "json_object"}),
        chat(again, tool_choice="required"),
        chat(again + [user("x" * 1000)]),
        post("/elsewhere"),
        chat(again, n=2),
    ]
    os.environ["OPENAI_API_KEY"] = "mine"
    found.append(chat(again))
    assert all("error" in one for one in found), found
    return len(found)
"""


def test_what_cannot_be_answered_is_refused_with_words(tmp_path: Path) -> None:
    (seen,) = play(tmp_path, REFUSALS, rows=1, n=1)
    assert seen.metrics["gain"] == 7 and seen.metrics["requests"] == 1


STREAMED = """
def solve(row):
    lines = chat([user("a")], stream=True, stream_options={"include_usage": True}).split("\\n\\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "data: [DONE]" in lines and deltas[0]["role"] == "assistant", lines
    message = {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}
    chat([user("a"), message, user("b")])
    return events[-1]["usage"]["completion_tokens"]
"""


def test_a_stream_says_the_same(tmp_path: Path) -> None:
    (seen,) = play(tmp_path, STREAMED, rows=1, n=1)
    table = seen.table("episode")
    assert seen.metrics["turns"] == 2 and 0 < seen.metrics["gain"] <= 6 < sum(table.scored[0])


TEXTS = """
def solve(row):
    prompt = "a"
    for turn in range(2):
        answer = post("/completions", prompt=prompt, max_tokens=5, logprobs=0, return_token_ids=True)
        prompt += answer["choices"][0]["text"] + "more"
    ids = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"]
    post("/completions", prompt=ids + [5], max_tokens=5, seed=3)
    return 1
"""


def test_texts_and_tokens_go_on_too(tmp_path: Path) -> None:
    (seen,) = play(tmp_path, TEXTS, rows=1, n=1)
    assert seen.metrics["turns"] == 3 and seen.metrics["off"] < 1e-5 and seen.metrics["refused"] == 0


TOOLS = """
ADD = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}

def solve(row):
    messages = [user("2+2?")]
    choice = chat(messages, tools=[ADD])["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert choice["finish_reason"] == "tool_calls" and json.loads(call["function"]["arguments"]) == {"a": 2}, choice
    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "4"}]
    last = chat(messages, tools=[ADD])["choices"][0]
    return last["message"]["content"] == "It is 4."
"""


def test_calls_of_tools_are_read_from_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(['Well. <tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', "It is 4."])
    monkeypatch.setattr(Codec, "decode_with_special", lambda codec, ids: next(said))
    monkeypatch.setattr(Codec, "decode", lambda codec, ids: "It is 4.")
    (seen,) = play(tmp_path, TOOLS, rows=1, n=1)
    columns = seen.table("episode").columns
    assert columns["calls"].tolist() == [1, 0] and columns["failed"].tolist() == [0, 0]
    assert columns["_said"][0]["calls"] == [{"name": "add", "arguments": {"a": 2}, "result": "4", "failed": False}]
    assert seen.metrics["gain"] == 1


def test_an_answer_ends_at_the_texts_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "abcdefgh"
    monkeypatch.setattr(Codec, "decode", lambda codec, ids: text[: len(ids)])
    solve = 'def solve(row):\n    choice = chat([user("a")], stop="cd")["choices"][0]\n    return [choice["message"]["content"], len(choice["token_ids"])] == ["ab", 4]\n'
    (seen,) = play(tmp_path, solve, rows=1, n=1)
    assert seen.metrics["gain"] == 1 and sum(seen.table("episode").scored[0]) == 4


def test_answers_of_several_lengths_are_sampled_together_and_cut(tmp_path: Path) -> None:
    solve = TALK.replace(
        "choice = chat(messages)",
        "choice = post('/chat/completions', messages=messages, "
        "max_tokens=3 + int(row['question'][0]), return_token_ids=True, logprobs=True)",
    )
    (seen,) = play(tmp_path, solve, rows=3, n=1, options=RETURNS)
    made = seen.table("episode").columns["made"].tolist()
    assert made == [sum(flags) for flags in seen.table("episode").scored] and seen.metrics["off"] < 1e-5
    assert all(3 < count <= 3 * (3 + row) for row, count in enumerate(made)) and len(set(made)) == 3


def test_many_episodes_are_played_beside_each_other(tmp_path: Path) -> None:
    (seen,) = play(tmp_path, TALK, rows=8, n=8, options=RETURNS)
    assert seen.metrics["off"] < 1e-5 and seen.metrics["finished"] == 64 and seen.metrics["requests"] == 192


def test_on_processes_of_a_plan_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = program(tmp_path, TALK, options=RETURNS)
    here = Run(compile_text(text), tmp_path).steps(2)
    Path("t.rlf").write_text(text, "utf-8")
    Path("t.rls").write_text("schedule t\npool all = 2 devices\nplace actor on all(dp=2)\n")
    run = rlgraph.compile(Path("t.rlf"), {}, schedule="t.rls").run(2, progress=False, backend="ray", debug=True)
    for there, seen in zip(run.metrics, here, strict=True):
        for name in ("gain", "turns", "requests", "finished"):
            assert there[name] == pytest.approx(seen.metrics[name]), name
    assert run.metrics[0]["off"] < 1e-5


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the package `openai` is not installed")
def test_the_client_of_openai_is_answered(tmp_path: Path) -> None:
    solve = """
from openai import OpenAI

def solve(row, base_url, api_key, model):
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages = [user(row["question"])]
    for turn in range(2):
        choice = client.chat.completions.create(model=model, messages=messages, max_tokens=6, logprobs=True).choices[0]
        messages += [choice.message, user("and")]
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=6, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in stream)
    assert client.models.list().data[0].id == model
    return len(choice.logprobs.content)
"""
    (seen,) = play(tmp_path, solve)
    assert seen.metrics["finished"] == 4 and seen.metrics["turns"] == 3 and seen.metrics["off"] < 1e-5


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ('agent("bot.py:absent")', "E0722"),
        ('agent("bot.py:solve", failed="x")', "E0403"),
        ('agent("bot.py:solve", branches=keep)', "E0403"),
        ('agent("bot.py:solve", returns=["reward", "turns"])', "E0858"),
        ('agent("bot.py:solve", tmeout=3)', "E0702"),
        ('agent("bot.py:odd")', "E0724"),
    ],
)
def test_a_declaration_is_checked_before_a_run(declared: str, said: str, tmp_path: Path) -> None:
    text = program(tmp_path, TALK + "\ndef odd(task):\n    return 1\n")
    Path(tmp_path / "t.rlf").write_text(text.replace('agent("bot.py:solve", workers=3)', declared), "utf-8")
    found = rlgraph.check(tmp_path / "t.rlf")
    assert said in [diagnostic.code for diagnostic in found], found


def test_an_agent_is_refused_away_from_the_process_that_it_asks(tmp_path: Path) -> None:
    text = program(tmp_path, TALK, options=RETURNS).replace("num_key_value_heads=1", "num_key_value_heads=2")
    Path(tmp_path / "t.rlf").write_text(text, "utf-8")
    for pools, code in (
        ("pool all = 1 devices\npool desks = 2 cpus\nplace actor on all\nplace bot on desks\n", "E0859"),
        ("pool all = 2 devices\nplace actor on all(tp=2)\n", "E0859"),
    ):
        (tmp_path / "t.rls").write_text(f"schedule t\n{pools}", "utf-8")
        with pytest.raises(ProgramError, match=code):
            rlgraph.compile(tmp_path / "t.rlf", {}, schedule=str(tmp_path / "t.rls")).run(
                1, progress=False, backend="ray"
            )


JUDGED = '''
def solve(row, model):
    """A solver that is asked twice, and a judge that hears each answer; an unknown model is refused."""
    messages, chances, made = [user(row["question"])], {"solver": 0.0, "judge": 0.0}, {"solver": 0, "judge": 0}
    assert model == "solver" and "judge" in chat(messages, model="nobody")["error"]["message"]
    for turn in range(2):
        choice = chat(messages, model="solver")["choices"][0]
        judged = chat([user("Right? " + choice["message"]["content"])], model="judge")["choices"][0] if turn else None
        for name, one in (("solver", choice), ("judge", judged)):
            tokens = one["logprobs"]["content"] if one else []
            made[name] += len(tokens)
            chances[name] += sum(token["logprob"] for token in tokens)
        messages += [choice["message"], user("and")]
    return {"solver": 1.0, "judge": -2.0, "solved": chances["solver"], "judged": chances["judge"],
            "more": float(made["judge"])}
'''


def test_an_agent_asks_several_models_by_name(tmp_path: Path) -> None:
    """Each model has what it was answered, token for token, with its own log-probabilities and reward."""
    text = program(tmp_path, JUDGED, options=', returns=["solver", "judge", "solved", "judged", "more"]')
    start, train = text.index("step:"), text.index("    train actor")
    declared = text[:start].replace("model ref = frozen(actor)", "model critic = " + _model(text, "seed=3, "))
    body = """step:
    games = interact(bot, rows, solver=actor, judge=critic, n=2, max_turns=8, max_tokens=400)
    solver = max(abs(actor.logprobs(games.solver) - games.solver.logprobs), token)
    judge = max(abs(critic.logprobs(games.judge) - games.judge.logprobs), token)
    report off = max(solver + judge), turns = mean(games.turns), others = mean(games.judge.turns)
    report gain = mean(sum(games.reward, turn)), loss = mean(sum(games.judge.reward, turn))
    report solved = max(abs(sum(games.logprobs, token) - games.solved)), refused = mean(games.refused)
    report judged = max(abs(sum(games.judge.logprobs, token) - games.judged)), asked = mean(games.requests)
    report more = max(abs(games.judge.length - games.more))
"""
    assert train > start
    (seen,) = Run(compile_text(declared + body), tmp_path).steps(1)
    told = seen.metrics
    assert told["turns"] == 2 and told["others"] == 1 and told["asked"] == 3 and told["refused"] == 1
    assert told["gain"] == 1 and told["loss"] == -2 and told["more"] == 0
    assert max(told["off"], told["solved"], told["judged"]) < 1e-5


def _model(text: str, seed: str) -> str:
    """The model of a program with other weights."""
    line = next(line for line in text.splitlines() if line.startswith("model actor"))
    return line.partition("= ")[2].replace('random("qwen2", ', f'random("qwen2", {seed}')


TOOLED = """
def solve(row):
    tool = {"type": "function", "function": {"name": "search", "description": "", "parameters": {}}}
    chat([{"role": "system", "content": "be kind"}, user("a")], tools=[tool])
    return 0
"""


@pytest.mark.parametrize("allowed", [False, True])
def test_what_the_template_leaves_out_of_requests_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], allowed: bool
) -> None:
    text = program(tmp_path, TOOLED, turns=1)
    line = next(line for line in text.splitlines() if "interact" in line)
    text = text.replace(line, f"{line}  # allow W0525" if allowed else line)
    template = TEMPLATE.partition("{% endfor %}")[2]
    template = template.replace("{{ '<' + m.role", "{% if m.role == 'user' %}{{ '<' + m.role").replace(
        "eos_token }}", "eos_token }}{% endif %}", 1
    )
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template
    Codec(tokenizer).save(tmp_path / "small")
    Run(compile_text(text), tmp_path).steps(2)
    said = capsys.readouterr().err
    for part in ("the tool `search`", 'the text of message 1 (role "system")'):
        expected = (
            f"warning[W0525]: the chat template of `actor` leaves out {part} of what `bot` asks, first in rows row 0"
        )
        assert said.count(expected) == (not allowed), said
    assert allowed or "leave `tools=` out" in said
