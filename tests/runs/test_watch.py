"""`rlgraph watch`: what it reads of runs, the samples of long ones, its server, and what is no run."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from written_runs import written_run

from rlgraph.cli import run_command
from rlgraph.errors import UsageMistake
from rlgraph.runs.watching.bins import bin_starts, binned_curve
from rlgraph.runs.watching.page import exported_page, live_page, script_json
from rlgraph.runs.watching.run_reader import MetricColumns, RunReader
from rlgraph.runs.watching.sample_pages import PAGE, search, step_page
from rlgraph.runs.watching.server import WatchServer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_is_read_on_where_it_was_left_off(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 3, ended=False)
    reader = RunReader(run)
    first = reader.page_data()
    assert (first["steps"], first["planned"], first["ended"], first["x"]) == (3, 3, None, [1, 2, 3])
    assert first["metrics"]["kl"]["mean"] == [0.01, 0.02, 0.03]
    assert first["work"]["last"] == {"generate rollout": 1.5, "train actor": 1.0}
    assert first["predicted"] == {"generate rollout": 2.0}
    before = reader.stamp()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward": "NaN", "new": 2.0}\n{"step": 5, "rew')
        file.flush()
        view = reader.page_data()
        assert reader.stamp() != before and view["steps"] == 4 and view["damaged"] == 0
        assert view["metrics"]["new"]["mean"] == [None, None, None, 2] and view["not_finite"] == {"reward": 4}
        file.write('ard": 1.0}\nnot a record\n')
    assert reader.page_data()["steps"] == 5 and reader.page_data()["damaged"] == 1


def test_a_run_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 6)
    reader = RunReader(run)
    assert reader.page_data()["steps"] == 6 and reader.page_data()["ended"]["outcome"] == "finished"
    # A tracker says behind the end where it has sent the run.
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "note", "time_s": 1.8e9, "step": 6, "text": "sent"}) + "\n")
    assert reader.page_data()["ended"]["outcome"] == "finished"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    # It goes on: events are appended, and steps come a second time.
    with (run / "events.jsonl").open("a") as file:
        work = {"work_s": {"train actor": 9.0}, "scores": {}}
        file.write(json.dumps({"kind": "step_done", "time_s": 1.8e9, "step": 3, "seconds": 1.0, **work}) + "\n")
    view = reader.page_data()
    assert view["steps"] == 2 and view["ended"] is None
    assert view["work"]["x"] == [1, 2, 3] and view["work"]["seconds"]["train actor"] == [1, 1, 9]


def test_a_step_that_comes_again_takes_the_place_of_those_from_it_on() -> None:
    columns = MetricColumns()
    for step in (1, 2, 3, 2):
        columns.add(step, {"a": float(step), **({"b": 1.0} if step == 3 else {})})
    assert list(columns.steps) == [1, 2] and list(columns.values["a"]) == [1, 2] and len(columns.values["b"]) == 2


def test_long_curves_keep_their_peaks() -> None:
    values = [0.0] * 10_000
    values[7_777], values[5_000] = 100.0, float("nan")
    curve = binned_curve(values, bin_starts(len(values)))
    assert len(curve["mean"]) == 400 and max(value or 0 for value in curve["max"]) == 100
    assert None not in curve["mean"] and set(curve["min"]) == {0}
    assert binned_curve([float("nan"), 1.0], bin_starts(2)) == {"mean": [None, 1], "min": [None, 1], "max": [None, 1]}


def test_samples_are_found_by_step_in_order_and_by_text(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 200, rows=PAGE + 5)
    last = step_page(run, None, "best")
    assert (last.step, last.steps, last.total, last.next) == (200, (1, 200), PAGE + 5, PAGE)
    rewards = [row["reward"] for row in last.rows]
    assert rewards == sorted(rewards, reverse=True)
    assert len(step_page(run, None, "best", last.next or 0).rows) == 5
    for step in (1, 2, 99, 200):
        assert {row["step"] for row in step_page(run, step).rows} == {step}
    assert step_page(run, 999).step == 200 and step_page(run, -4).step == 1
    found = search(run, "WHAT IS 17+3?")
    assert [(row["step"], row["prompt"]) for row in found.rows] == [(17, "What is 17+3?")] and found.next is None
    # Names of fields are in every line, and are nobody's text.
    assert search(run, "version").rows == []
    first = search(run, "what is")
    assert len(first.rows) == PAGE and first.next is not None and first.rows[0]["step"] == 200
    second = search(run, "what is", first.next)
    assert {row["step"] for row in second.rows} == {200, 199}
    assert not {(row["step"], row["prompt"]) for row in first.rows} & {
        (row["step"], row["prompt"]) for row in second.rows
    }


def test_a_search_looks_at_so_much_of_the_file_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written_run(tmp_path / "run", 40, rows=4)
    for name in ("SEARCHED_BYTES", "_CHUNK"):
        monkeypatch.setattr(f"rlgraph.runs.watching.sample_pages.{name}", 2_000)
    pages, before = 0, None
    while True:
        page = search(run, "is 1+2?", before)
        pages, before = pages + 1, page.next
        if page.rows or before is None:
            break
        assert page.step < 40
    assert pages > 10 and [row["prompt"] for row in page.rows] == ["What is 1+2?"]


def test_damaged_and_half_written_samples_are_left_out(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 2)
    with (run / "samples.jsonl").open("a") as file:
        file.write('{"step": 3, "table": 1}\n{"step": 3, "tab')
    assert step_page(run).step == 3 and step_page(run).rows == []
    assert len(step_page(run, 2).rows) == 2 and len(search(run, "what").rows) == 4
    (run / "samples.jsonl").write_text("")
    assert step_page(run).to_json()["rows"] == [] and search(run, "x").rows == []
    (run / "samples.jsonl").unlink()
    assert step_page(run).steps == (0, 0)


def test_texts_of_runs_end_no_script(tmp_path: Path) -> None:
    page = exported_page([RunReader(written_run(tmp_path / "run", 2))])
    assert page.count("</script>") == 2 and "onerror=" not in page.replace("onerror=\\", "")
    assert script_json("</script>&") == '"\\u003c/script\\u003e\\u0026"'
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page


@contextmanager
def served(*runs: Path, port: int | None = None) -> Iterator[WatchServer]:
    server = WatchServer([RunReader(run) for run in runs], port)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.close()


def asked(server: WatchServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_the_server_answers_who_has_the_token(tmp_path: Path) -> None:
    with served(written_run(tmp_path / "run", 5)) as server:
        with urlopen(server.address) as page:
            assert page.status == 200 and "connect-src 'self'" in page.headers["Content-Security-Policy"]
        base = f"/{server.token}"
        data = json.loads(asked(server, f"{base}/data.json")[1])
        assert data["runs"][0]["steps"] == 5
        stamp = json.dumps(data["stamp"], separators=(",", ":"))
        assert json.loads(asked(server, f"{base}/data.json?stamp={stamp}")[1]) == {"stamp": data["stamp"]}
        rows = json.loads(asked(server, f"{base}/samples.json?step=3&order=best")[1])["rows"]
        assert [row["prompt"] for row in rows] == ["What is 3+1?", "What is 3+0?"]
        assert "What is 4+0?" in asked(server, f"{base}/samples.json?search=4%2B0")[1]
        for wrong in ("/", "/data.json", "/wrong/data.json", f"{base}/../../etc/passwd"):
            assert asked(server, wrong)[0] == 404, wrong
        # A name of another site that leads to this machine.
        assert asked(server, f"{base}/", host="evil.example")[0] == 404
        for wrong in ("run=7", "run=x", "step=x"):
            assert asked(server, f"{base}/samples.json?{wrong}")[0] == 400, wrong


def test_a_port_in_use_is_left_alone(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with served(run, port=port) as server:
            assert server.took_another and server.port != port
            assert asked(server, f"/{server.token}/")[0] == 200


def test_the_command_serves_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written_run(tmp_path / "run", 1)

    def serve(self: WatchServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve", serve)
    assert run_command(["watch", str(run)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("http://127.0.0.1:") and told.splitlines()[0].endswith("/")
    assert run_command(["watch", str(run), "--message-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["address"].startswith("http://127.0.0.1:")


def test_a_folder_that_is_read_only_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written_run(tmp_path / "run", 2)
    files = sorted(path.name for path in run.iterdir())
    run.chmod(0o555)
    try:
        assert run_command(["watch", str(run), "--export", "page.html"]) == 0
    finally:
        run.chmod(0o755)
    assert capsys.readouterr().out == "wrote page.html\n" and "What is 2+1?" in Path("page.html").read_text()
    assert sorted(path.name for path in run.iterdir()) == files


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written_run(tmp_path / "runs/grpo-1", 1)

    def told(*arguments: str) -> str:
        assert run_command(["watch", *arguments]) == 2
        return capsys.readouterr().err

    assert "error[E0876]: `runs` is not the folder of a run: there is no `metrics.jsonl` in it" in told("runs")
    assert "there are runs in it: give `runs/grpo-1`" in told("runs")
    assert "`nowhere` is not the folder of a run: " in told("nowhere")
    assert "error[E0878]: the page cannot be written to `no/page.html`" in told(str(run), "--export", "no/page.html")


def test_a_port_that_is_the_systems_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rlgraph.runs.watching.server._Server.server_bind", refuse)
    with pytest.raises(UsageMistake, match="E0877"):
        WatchServer([RunReader(written_run(tmp_path / "run", 1))], 80)


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    reader = RunReader(tmp_path / "run")
    assert reader.page_data()["steps"] == 0 and "<title>run</title>" in live_page([reader])
    (tmp_path / "run/events.jsonl").write_text('[]\n{"kind": "step_done"}\n{"kind": 7}\n\xff\n', encoding="latin-1")
    assert reader.page_data()["damaged"] == 4


def test_an_exported_page_has_all_rows_of_a_step(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 2, rows=32)
    page = exported_page([RunReader(run)])
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert (len(data["samples"][0]), data["kept"]) == (64, [64])
