"""A reward server that is asked by HTTP: what it is sent, what it may answer, and what is said where it does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlgraph.errors import ProgramError, RunError
from rlgraph.user_code import RewardFunction, Workers, check_function_declaration, open_reward_function, reward_server
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]


class Server(ThreadingHTTPServer):
    """Answers with what it is told, one answer after the other, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answers: list[tuple[int, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((dict(self.headers), body))
        status, text = (
            self.server.answers.pop(0)
            if self.server.answers
            else (200, json.dumps([float(len(text)) for text in body["completions"]]))
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Be silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


Opened = Callable[..., RewardFunction]


@pytest.fixture
def opened(declare: Declare, workers: Workers, server: Server) -> Opened:
    def open_it(options: str = "", url: str = "") -> RewardFunction:
        spec = declare(f'func judge = http("{url or server.url}"{options})')
        return open_reward_function(spec, SearchFolders(Path()), workers)

    return open_it


def test_it_is_sent_the_rows_and_their_columns(opened: Opened, server: Server) -> None:
    f = opened(", batch=2")
    columns: dict[str, list[Any]] = {"answer": ["4", None, "7"], "prompt": ["p", "q", "r"], "token": [1, 2, 3]}
    assert f(["p", "q", "r"], ["a", "bb", "ccc"], [[1], [2], [3]], columns) == [1.0, 2.0, 3.0]
    assert [body for _, body in server.asked] == [
        {"prompts": ["p", "q"], "completions": ["a", "bb"], "answer": ["4", None], "token": [1, 2]},
        {"prompts": ["r"], "completions": ["ccc"], "answer": ["7"], "token": [3]},
    ]


@pytest.mark.parametrize(
    ("options", "answer", "columns"),
    [
        ("", {"scores": [1, 2]}, [[1.0, 2.0]]),
        ("", {"rewards": [1, 2], "extra": {}}, [[1.0, 2.0]]),
        (', none="skip"', [1, None], [[1.0, 0.0]]),
        (', returns=["a", "b"]', [{"a": 1, "b": 2}, [3, 4]], [[1.0, 3.0], [2.0, 4.0]]),
    ],
)
def test_what_it_may_answer(
    opened: Opened, server: Server, options: str, answer: Any, columns: list[list[float]]
) -> None:
    server.answers = [(200, json.dumps(answer))]
    assert opened(options).judge(["p"] * 2, ["a", "b"]).columns == columns


def test_a_server_at_fault_is_asked_again(opened: Opened, server: Server) -> None:
    server.answers = [(503, "starting")]
    assert opened(", retries=1")(["p"], ["a"]) == [1.0]
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "retries", "asked", "said"),
    [
        ((500, "out of\nmemory"), 1, 2, "URL answered 500 Internal Server Error: out of memory, asked 2 times"),
        ((422, "no field 'text'"), 3, 1, "URL answered 422 Unprocessable Entity: no field 'text'"),
        ((200, "<html>"), 3, 1, "URL answered with something that is no JSON: '<html>'"),
        ((200, '{"score": 1}'), 3, 1, "URL answered with an object without `scores`: it has score"),
    ],
)
def test_what_is_said_where_it_has_no_answer(
    opened: Opened, server: Server, answer: tuple[int, str], retries: int, asked: int, said: str
) -> None:
    server.answers = [answer] * 9
    with pytest.raises(RunError) as caught:
        opened(f", retries={retries}")(["p"] * 2, ["a", "b"])
    found = caught.value.diagnostics[0]
    said = said.replace("URL", server.url)
    assert (found.code, found.message) == (
        "E0726",
        f"`http` raised NoAnswer: {said}, on 2 rows together: row 0 to row 1",
    )
    assert len(server.asked) == asked, "no row is blamed, so that none is asked alone"


def test_nobody_is_there(opened: Opened, server: Server) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as gone:
        url = f"http://127.0.0.1:{gone.server_address[1]}/score"
    f = opened(', retries=0, failed="skip"', url)
    found = f.judge(["p"] * 2, ["a", "b"])
    assert found.states == [-2, -2]
    assert found.failures[0].startswith(f"on row 0: it raised NoAnswer: {url} did not answer: ")


def test_a_token_of_the_environment(opened: Opened, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "secret")
    assert opened(', token="JUDGE_TOKEN"')(["p"], ["a"]) == [1.0]
    assert server.asked[0][0]["Authorization"] == "Bearer secret"
    with pytest.raises(RunError, match="the environment has no variable OTHER_TOKEN"):
        opened(', token="OTHER_TOKEN"')(["p"], ["a"])


def test_the_time_of_a_call_is_that_of_all_that_is_tried(opened: Opened) -> None:
    assert opened(", timeout=10, retries=3").limit_s == 4 * 10 + 0.5 + 1 + 2
    assert opened(", timeout=10, retries=0").limit_s == 10
    assert reward_server.limit_with_retries_s(1, 9) == 10 + 0.5 + 1 + 2 + 4 + 8 + 4 * reward_server.LONGEST_WAIT_S


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('http("judge/score")', "'judge/score' is no address of a server: it begins with http:// or https://"),
        (
            'http("http://judge/v1/chat/completions/")',
            "'http://judge/v1/chat/completions/' is where OpenAI's API answers with texts, and `http` asks for a score",
        ),
        ('http("http://judge", retries=-1)', "`retries` must be a whole number of at least 0, not -1"),
        ('http("http://judge", retry=2)', "`http` has no option 'retry'"),
        ("http()", "`http` takes one text: the address of a server"),
    ],
)
def test_declarations_that_are_wrong(declare: Declare, call: str, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check_function_declaration(declare(f"func f = {call}"))
    assert caught.value.diagnostics[0].message == message


def test_mathematics_in_latex(declare: Declare, workers: Workers) -> None:
    pytest.importorskip("math_verify")
    f = open_reward_function(declare('func f = math_verify(none="skip")'), SearchFolders(Path()), workers)
    answers = ["\\frac{1}{2}", "1/2", "so #### 12", "x+1", "\\sqrt{2}", "7", None]
    texts = ["it is $\\boxed{0.5}$", "0.25", "1 + 11 = 12", "$1 + x$", "\\boxed{\\sqrt{2}}", "no idea", "7"]
    found = f.judge(["p"] * 7, texts, columns={"answer": answers})
    assert found.columns == [[1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    assert found.states == [0, 0, 0, 0, 0, 0, -1]
    chat = [[{"role": "user", "content": "1/2 in digits"}]]
    assert f(chat, ["$\\frac{2}{4}$"], columns={"answer": ["0.5"]}) == [1.0]
