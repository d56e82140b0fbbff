"""`rlgraph lengths`: what is counted is what is there, what was cut is longer, and predictions take the file."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import fmean

import pytest

import rlgraph
from rlgraph.api.target import fit_lengths, workload
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.profiles.censored_lengths import CensoredLengths
from rlgraph.profiles.lengths import read_fitted_lengths

LENGTHS = (
    '{"rlgraph_lengths": 1, "source": "x",\n "prompts": {"rows": 2, "cut": 0, "values": [7, 9]},\n "answers": null}'
)

TINY = """algorithm tiny
model actor = causal_lm(random("qwen2", seed=1, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                               num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                               initializer_range=0.3, tokenizer=chars("ab")))
data prompts = jsonl("prompts.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, n=8, max_tokens=6)
    report length = mean(rollout.length)
"""


def lognormal(rows: int, seed: int = 3) -> list[int]:
    generator = random.Random(seed)
    return [max(1, round(generator.lognormvariate(6, 1))) for _ in range(rows)]


def cut_at(rows: list[int], limit: int) -> CensoredLengths:
    return CensoredLengths([row for row in rows if row < limit], [limit for row in rows if row >= limit])


def test_rows_that_were_cut_at_different_limits() -> None:
    """By hand: of 6 rows 1 ends at 3; 1 is cut at 4; of the 4 that are left 2 end at 5, of 2 one at 8, 1 is cut
    there."""
    found = list(CensoredLengths([3, 5, 5, 8], [4, 8])._seen())
    assert [length for length, _ in found] == [3, 5, 8]
    assert [mass for _, mass in found] == pytest.approx([1 / 6, 5 / 6 / 2, 5 / 12 / 2])


@pytest.mark.parametrize("limit", [10**6, 2000, 700])
def test_a_known_distribution_is_found_again(limit: int) -> None:
    """Of 20,000 rows of a log-normal distribution of which none, one in 18 and one in 3 are cut."""
    rows = lognormal(20_000)
    found = cut_at(rows, limit)
    fit = found.log_length_distribution
    # Standard errors of both are less than 1 / sqrt(rows that ended); five of them.
    assert fit is not None and len(found.ended) < len(rows) or limit == 10**6
    assert (fit.mean, fit.stdev) == pytest.approx((6, 1), abs=5 / math.sqrt(len(found.ended)))
    # Kolmogorov's distance of so many rows from the distribution that they are of is hardly more.
    assert 0 < found.fit_distance < 1.63 / math.sqrt(len(rows))
    made = found.estimated_lengths()
    assert made.capped(limit).mean == pytest.approx(fmean(min(row, limit) for row in rows), rel=2e-3)
    # What nobody saw is the log-normal's: the mean of all is exp(mu + sigma^2 / 2).
    assert made.mean == pytest.approx(math.exp(6.5), rel=0.05)


def test_another_distribution_is_far_from_log_normal() -> None:
    generator = random.Random(1)
    assert CensoredLengths([generator.choice((10, 1000)) for _ in range(500)]).fit_distance > 0.2


def test_few_rows() -> None:
    assert (
        CensoredLengths([5]).estimated_lengths() == Lengths((5.0,))
        and CensoredLengths([5]).log_length_distribution is None
    )
    assert (
        CensoredLengths([], [4, 4]).estimated_lengths().mean == 4
        and CensoredLengths([], [4, 4]).log_length_distribution is None
    )
    assert CensoredLengths([2, 9]).estimated_lengths().values == (2, 9)
    # A spread of nothing beside what was cut far above: no number is infinite.
    assert all(math.isfinite(value) for value in CensoredLengths([1, 2], [100_000] * 50).estimated_lengths().values)


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_and_what_is_predicted_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens of a simulated step are those of the steps that were recorded."""
    monkeypatch.chdir(tmp_path)
    write(Path("prompts.jsonl"), [{"prompt": text} for text in ("a", "abb", "babab", "bbbbbbb")])
    Path("tiny.rlf").write_text(TINY)
    assert run_command(["run", "tiny.rlf", "--steps", "6", "--out", "r", "--record", "rec"]) == 0
    assert run_command(["lengths", "r", "-o", "l.json"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [["prompts", "4"], ["answers", "192"]]
    lengths = [json.loads(line)["length"] for line in Path("r/metrics.jsonl").read_text().splitlines()]
    found = fit_lengths("rec")
    assert found.prompts is not None and found.answers is not None
    assert sorted(found.prompts.ended) == [1, 3, 5, 7]
    assert set(found.answers.cut) == {6} and len(found.answers.ended) > 20
    both = workload(lengths="l.json")
    assert both.answer_lengths(6).mean == pytest.approx(fmean(lengths), rel=1e-3)
    told = {}
    for given in ([], ["--lengths", "l.json"], ["--lengths", "l.json", "--prompt-tokens", "10"]):
        assert run_command(["simulate", "tiny.rlf", "--steps", "20", "--message-format", "json", *given]) == 0
        told[len(given)] = json.loads(capsys.readouterr().out.splitlines()[-1])["tokens"]
    # Lengths of whole tokens are rounded each by itself.
    assert told[2] == pytest.approx(32 * (4 + fmean(lengths)), rel=0.02)
    assert told[4] - told[2] == pytest.approx(32 * 6, rel=1e-6) and told[0] > 10 * told[2]
    assert run_command(["compile", "tiny.rlf", "--cluster", "1x1:cpu", "--lengths", "l.json"]) == 0
    plan = rlgraph.compile("tiny.rlf", cluster="1x1:cpu", workload=both).plan_json()
    assert json.loads(json.loads(plan)["assumptions"]["prompt_tokens"]) == [1, 3, 5, 7]


def test_turns_of_an_episode_are_one_answer(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text('{"format": 2, "program": "p", "seed": 0}')
    record = {"node": "n", "row": ["d", 0, 0, 0], "versions": [[0, 2]], "logprobs": [0, 0], "tokens": [4, 1]}
    lines = [
        record | {"turn": turn, "prompt": f"{turn}", "prompt_tokens": 5 + 4 * turn, "finished": turn == 1}
        for turn in (1, 0)
    ]
    write(tmp_path / "step-000001.here-1-ff.jsonl", lines)
    found = fit_lengths(tmp_path)
    assert (found.prompts, found.answers) == (CensoredLengths([5]), CensoredLengths([4], []))


def test_columns_of_files(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa  # type: ignore[import-untyped]

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"ids": [[1, 2, 3], [4]], "response": [9, 30]}), path)
    found = fit_lengths(path, prompt="ids", limit=20)
    assert (found.prompts, found.answers) == (CensoredLengths([3, 1]), CensoredLengths([9], [20]))


def test_texts_are_counted_by_a_tokenizer(tmp_path: Path) -> None:
    from rlgraph.backends.engines.tokenizers import CharTokenizer, build_tokenizer

    build_tokenizer(CharTokenizer("ab")).save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    path = write(tmp_path / "rows.jsonl", [{"prompt": "abab", "answer": "ba"}])
    found = fit_lengths(path, answer="answer", model=str(tmp_path / "model"))
    # An answer has its end, too.
    assert (found.prompts, found.answers) == (CensoredLengths([4]), CensoredLengths([3], []))


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a{% generation %}{{ m.content }}b{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}bb{% endif %}{% if add_generation_prompt %}a{% endif %}"
)
ASKED: dict[str, object] = {"role": "user", "content": "ab"}


def said(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("rows", "prompts", "answers"),
    [
        ([{"messages": [ASKED, said("a"), ASKED, said("ba")]}], [6], [5]),
        ([{"messages": [ASKED, said("a")], "tools": [{"name": "t"}]}], [5], [2]),
        ([{"prompt": [ASKED], "completion": [said("bab")]}], [3], [4]),
        ([{"prompt": "ab", "completion": "aba"}], [2], [4]),
        ([{"prompt": "ab", "chosen": "aba", "rejected": "a"}], [2], [4, 2]),
        ([{"chosen": [ASKED, said("a")], "rejected": [ASKED, said("aab")]}], [3], [2, 4]),
        ([{"prompt": [ASKED]}, {"prompt": "aba"}], [3, 3], []),
        ([{"text": "abab"}], [], [5]),
    ],
)
def test_conversations_are_counted_as_they_are_encoded(
    rows: list[dict[str, object]], prompts: list[int], answers: list[int], tmp_path: Path
) -> None:
    """The tools of a row are in its prompt, and of a pair both are answers."""
    found = fit_lengths(write(tmp_path / "rows.jsonl", rows), model=tokenizer_folder(tmp_path))
    assert (found.prompts, found.answers) == (
        CensoredLengths(prompts) if prompts else None,
        CensoredLengths(answers, []) if answers else None,
    )


def test_whatever_a_program_reads_is_counted(tmp_path: Path) -> None:
    """Files of any format, a folder of them, and a glob."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, object]] = [{"prompt": [ASKED], "completion": [said("bab")]}]
    model = tokenizer_folder(tmp_path)
    for name in ("rows.json", "rows.parquet", "rows.jsonl"):
        path = tmp_path / name.partition(".")[2] / name
        path.parent.mkdir()
        if name.endswith("t"):
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text(json.dumps(rows if name.endswith("n") else rows[0]))
        for given in (path, path.parent, path.parent / "*"):
            found = fit_lengths(given, model=model)
            assert (found.prompts, found.answers) == (CensoredLengths([3]), CensoredLengths([4], []))


def tokenizer_folder(folder: Path) -> str:
    """The folder of a tokenizer of `ab` with a chat template."""
    from rlgraph.backends.engines.tokenizers import CharTokenizer, build_tokenizer

    tokenizer = build_tokenizer(CharTokenizer("ab"))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(folder / "model"))
    (folder / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    return str(folder / "model")


@pytest.mark.parametrize(
    ("name", "text", "options", "code", "said"),
    [
        ("e.jsonl", "", [], "E0707", "no rows"),
        ("t.jsonl", '{"prompt": "hi"}', [], "E0947", "--model NAME"),
        ("h.jsonl", '{"response": 3000000000000}', [], "E0947", "3,000,000,000,000 tokens"),
        ("n.jsonl", '{"response": -1}', [], "E0947", "row 0 of"),
        ("o.jsonl", '{"response": {"a": 1}}', [], "E0947", "texts, messages, lists of tokens"),
        ("m.jsonl", '{"question": 1}', [], "E0947", "it has `question`"),
        ("c.jsonl", '{"question": 1}', ["--prompt", "qestion"], "E0947", "did you mean `question`?"),
        ("l.jsonl", '{"prompt": 1}\n{"promt": 1}', [], "E0947", "row 1 of"),
        ("t.txt", "1", [], "E0947", "a text in `text`"),
        ("t.py", "1", [], "E0762", "does not say what it holds"),
        ("e.csv", "", [], "E0765", "names the columns"),
        ("c.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}', [], "E0947", "a conversation in `messages`"),
        ("x.jsonl", '{"chosen": "a"}\n{"chosen": null}', ["--answer", "chosen"], "E0947", "row 0 of"),
        ("n.jsonl", '{"info": {"q": 1}}', ["--prompt", "info.p"], "E0947", "no column `info.p`"),
        ("b.jsonl", "{", [], "E0706", "broken JSON"),
    ],
)
def test_what_cannot_be_counted(
    name: str,
    text: str,
    options: list[str],
    code: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert run_command(["lengths", name, *options]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error[{code}]") and said in err and "^" in err
    assert not Path("lengths.json").exists()


def test_folders_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["lengths", str(tmp_path)]) == 2 and "E0815" in capsys.readouterr().err
    (tmp_path / "recording.json").write_text('{"format": 2, "program": "p", "seed": 0}')
    assert run_command(["lengths", str(tmp_path)]) == 1 and "has no rows" in capsys.readouterr().err
    (tmp_path / "step-000001.x.jsonl").write_text('{"node": ')
    assert run_command(["lengths", str(tmp_path)]) == 4 and "E0817" in capsys.readouterr().err
    assert run_command(["lengths", str(tmp_path), "--model", "m"]) == 2 and "goes with files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ('"rlgraph_lengths": 1', '"rlgraph_lengths": 2', "E0945", "version 2"),
        ('"rlgraph_lengths"', '"lengths"', "E0944", "no field"),
        ("7, 9", "7, 9,", "E0944", "no JSON"),
        ("7, 9", "9, 7", "E0946", "less than the one before"),
        ("7, 9", '7, "9"', "E0946", "no length"),
        ("7, 9", "7, -9", "E0946", "no length"),
        ("7, 9", "7, 1e12", "E0946", "no length"),
        ("7, 9", ", ".join(["7"] * 257), "E0946", "257 values"),
        ("[7, 9]", "7", "E0946", "a list"),
        ('"rows": 2', '"row": 2', "E0946", "`row`"),
        ('"cut": 0', '"cut": 3', "E0946", "0 to 2"),
        ('{"rows": 2, "cut": 0, "values": [7, 9]}', "null", "E0946", "neither"),
    ],
)
def test_files_of_lengths_that_are_wrong(old: str, new: str, code: str, said: str, tmp_path: Path) -> None:
    assert old in LENGTHS
    path = tmp_path / "lengths.json"
    path.write_text(LENGTHS.replace(old, new))
    with pytest.raises(ProgramError) as caught:
        read_fitted_lengths(path)
    assert any(found.code == code and said in found.message for found in caught.value.diagnostics), caught.value
    assert all(found.span.source.path == str(path) for found in caught.value.diagnostics)


def test_a_caret_stands_under_the_number(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(LENGTHS.replace("9", "-9"))
    with pytest.raises(ProgramError) as caught:
        read_fitted_lengths(path)
    assert (caught.value.diagnostics[0].span.line, caught.value.diagnostics[0].span.covered_text) == (2, "-9")


def test_a_file_of_lengths_in_place_of_one_list(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(LENGTHS)
    with pytest.raises(ProgramError, match=f"--lengths {path}"):
        workload(prompt_tokens=str(path))
