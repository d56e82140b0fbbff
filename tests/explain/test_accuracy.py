"""benchmarks/accuracy.py reads anybody's rows, and says of each that it leaves out why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.accuracy import (
    MEASURED,
    Compared,
    Group,
    all_groups,
    all_rows,
    by_phase,
    compare,
    compared,
    grouped,
    page,
    split_by_fit,
)
from benchmarks.accuracy_summary import rows_summary, summary
from benchmarks.measured import BadRows, Inexpressible, Row, express, publishers, read_rows
from benchmarks.padded_rows import Controller
from tests.documents import ROOT

HEAD = "id,model,gpu,gpus,tp,phase,engine,prompt_len,response_len,batch,value,unit"
GOOD = "A,Qwen/Qwen3-32B,H100-80GB SXM,2,2,generate (per token),vllm 0.12.0,1024,1024,8,15.9,ms a token (TPOT)"


def rows(folder: Path, *lines: str) -> list[Row]:
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return read_rows(file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "is empty"),
        ((HEAD,), "has no row"),
        ((HEAD.replace("value,", ""), GOOD), "has no column `value`"),
    ],
)
def test_a_file_without_measurements_is_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadRows, match=message):
        rows(tmp_path, *lines)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRows, match="No such file"):
        read_rows(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("H100-80GB SXM", "H101-80GB", "no device of the table; did it mean `h100-80gb`"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-33B", "not known here; did it mean `Qwen/Qwen3-32B`"),
        ("generate (per token)", "dreaming", "phase `dreaming`"),
        ("Qwen/Qwen3-32B", '"GPT (2 layers, hidden 0)"', "a whole number from 1"),
        ("vllm 0.12.0", "abacus", "has no engine here"),
        (",1024,1024,8,", ",1024,1024,,", "how many rows"),
        (",1024,1024,8,", ",,,8,", "how long prompts"),
        (",2,2,", ",3,2,", "are not its 3 devices"),
        ("15.9", "fast", "no number"),
        ("15.9", "-1", "above 0"),
        ("ms a token (TPOT)", "bananas", "unit `bananas`"),
    ],
)
def test_a_row_that_says_nothing_here_is_named_with_the_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    found, left = compare(rows(tmp_path, HEAD, GOOD, GOOD.replace("A,", "B,", 1).replace(old, new, 1)))
    assert [each.row.id for each in found] == ["A"]
    assert [(row.id, reason in why) for row, why in left] == [("B", True)]
    assert "- B: " in page(found, left)


STEP = f"{HEAD},gpus,dp,gen_tp,notes".replace("gpus,tp", "tp", 1)


def test_lag_in_the_notes_of_a_row_is_lag_in_its_program(tmp_path: Path) -> None:
    """Devices beyond those that train then sample."""
    line = '{},meta-llama/Llama-3.1-8B,H100,1,step,megatron->vllm,100,1000,64,70,s,16,8,1,"n = 8, {}"'
    here, apart = rows(tmp_path, STEP, line.format("A", "").replace(",16,8,", ",8,8,"), line.format("B", "lag = 1"))
    assert "step:" in express(here).program
    assert "step async(lag=1):" in express(apart).program
    assert "pool learn = 8 devices" in express(apart).schedule and "pool play = 8 devices" in express(apart).schedule


PHASE = f"{HEAD},dp,longest,source,notes"


def phases(folder: Path, *notes: str, engine: str = "megatron", phase: str = "train") -> list[Compared]:
    """The same 512 rows on four devices, with each of these notes."""
    split = "2,2,4096" if engine.startswith("megatron") else ",4,4096"
    line = f"A,Qwen/Qwen2.5-1.5B,H100,4,{{}},{phase} (rollouts),{engine},100,400,512,1,s,{{}},https://x,{{}}"
    tp, dp, longest = split.split(",")
    return [
        compared(row) for row in rows(folder, PHASE, *(line.format(tp, f"{dp},{longest}", f'"{n}"') for n in notes))
    ]


@pytest.mark.parametrize("engine", ["megatron", "fsdp"])
def test_log_probabilities_are_read_with_the_split_that_trains(tmp_path: Path, engine: str) -> None:
    (trained,), (read,) = (phases(tmp_path, "", engine=engine, phase=phase) for phase in ("train", "logprobs"))
    assert read.experiment.work == "scores" and "old = actor.logprobs(answer)" in read.experiment.program
    assert read.experiment.schedule == trained.experiment.schedule.replace("actor.train", "actor.logprobs")
    assert read.experiment.answers == trained.experiment.answers != "400", "answers have unlike lengths"
    assert 2 < trained.predicted / read.predicted < 4.5


def test_notes_say_in_how_many_updates_and_micro_batches_rows_are_trained(tmp_path: Path) -> None:
    once, often, small, fused = phases(
        tmp_path, "", "16 updates", "16 updates; micro-batches of up to 1,024 tokens", "fused loss"
    )
    assert "minibatch pairs(parts=16):" in often.experiment.program
    assert small.experiment.micro_tokens == 1024
    assert fused.predicted < once.predicted < often.predicted < small.predicted


def test_notes_say_whose_attention_a_system_has(tmp_path: Path) -> None:
    """`transformers`, which stands in for FSDP, has FlashAttention 2 on a device that has faster kernels."""
    plain, older, newer = phases(tmp_path, "", "flash attention 2", "flash attention 3", engine="fsdp")
    assert plain.predicted == older.predicted > newer.predicted
    same, megatron = phases(tmp_path, "", "flash attention 3")
    assert same.predicted == megatron.predicted


def test_notes_say_how_fast_the_network_of_a_node_is(tmp_path: Path) -> None:
    head, line = f"{HEAD},dp,notes", "A,Qwen/Qwen3-0.6B,H100,16,1,train,fsdp,4096,0,64,9,s,16,{}"
    usual, slow = map(compared, rows(tmp_path, head, line.format(""), line.format("a network of 100 Gb/s a node")))
    assert slow.experiment.cluster == f"{usual.experiment.cluster}@100Gb/s/node"
    assert slow.predicted > usual.predicted


def test_what_a_loss_moves_is_not_counted_where_rows_are_only_read(tmp_path: Path) -> None:
    plain, fused = phases(tmp_path, "", "fused loss", engine="fsdp", phase="logprobs")
    (trained,) = phases(tmp_path, "", engine="fsdp")
    assert trained.experiment.differs["logit"] == 71 and "logit" not in plain.experiment.differs
    assert fused.predicted < plain.predicted


def test_rows_of_verl_go_through_its_controller(tmp_path: Path) -> None:
    """All places of padded rows go out once; the answers of all ranks come back."""
    out = 512 * (24 * (2048 + 4096) + 8 * 2048 + 24 * 4096) / 1e9
    back = 512 * 8 * 4096 / 1e9
    assert 0.13 < out < 0.14 and 0.016 < back < 0.017
    seconds = 2.5 * out + 1.2 * out / 2 + 2.4 * back / 2 + (1.1 * 4 + 0.45) * back
    assert Controller().seconds("logprobs", 512, 4096, replicas=2, ranks=4) == pytest.approx(seconds)
    (theirs,), (ours,) = (
        phases(tmp_path, "", engine=engine, phase="logprobs") for engine in ("megatron (verl)", "megatron")
    )
    assert theirs.predicted - ours.predicted == pytest.approx(
        Controller().seconds("logprobs", 512, 4096, replicas=2, ranks=2)
    )
    (trained,) = phases(tmp_path, "", engine="fsdp (verl)")
    assert trained.experiment.beside == Controller().seconds("train", 512, 4096, replicas=4, ranks=1) > 3 * out


def test_benchmarks_may_deal_tokens_out_to_experts_evenly(tmp_path: Path) -> None:
    head, line = f"{HEAD},dp,ep,notes", "A,Qwen/Qwen3-30B-A3B,H100,8,1,train,megatron,4096,0,64,9,s,8,8,{}"
    even, real = map(
        compared, rows(tmp_path, head, line.format("tokens are dealt out evenly"), line.format("dropless"))
    )
    assert even.experiment.even and not real.experiment.even
    assert 1.1 < real.predicted / even.predicted < 1.5


@pytest.mark.parametrize(("split", "said"), [("2,2,2,8", "tp=2, pp=2, cp=2, ep=4, dp=2"), ("2,2,4,8", "(cp), too")])
def test_ranks_that_share_the_tokens_of_a_row(tmp_path: Path, split: str, said: str) -> None:
    """NVIDIA's `ep` counts tensor ranks, too, and may count those of `cp`, which nothing here does."""
    head = "id,model,gpu,phase,engine,tp,pp,cp,ep,gpus,prompt_len,batch,value,unit,source"
    line = f"A,Qwen/Qwen3-30B-A3B,H100,train,megatron,{split},{64 if said[0] == 't' else 32},4096,64,9,s"
    (row,) = rows(tmp_path, head, f"{line},https://github.com/NVIDIA-NeMo/Megatron-Bridge")
    if said[0] == "t":
        assert f"engine=megatron, {said}," in express(row).schedule
    else:
        with pytest.raises(Inexpressible, match=re.escape(said)):
            express(row)


def test_rates_are_the_seconds_that_their_sources_derive() -> None:
    """Where the notes of a row say how long an iteration takes, by its source's own formula."""
    derived = 0
    for row in read_rows(MEASURED[0]):
        if found := re.search(r"about ([\d.]+) s an iteration", row.cells["notes"]):
            derived += 1
            assert express(row).measured == pytest.approx(float(found[1]), rel=0.005)
    assert derived == 7


def test_every_row_that_is_measured_against_has_a_source_and_is_predicted_or_left_out_by_name() -> None:
    *published, ours = map(read_rows, MEASURED)
    others = [row for rows in published for row in rows]
    assert all(row.cells["source"].startswith("https://") for row in others)
    assert all(row.publisher.name.startswith("our own H100") for row in ours)
    for row in others:
        assert row.publisher in publishers(), row.id
        if row.phase == "sync" or re.search(NEVER, row.cells["notes"]) or row.id in REFUSED:
            with pytest.raises(Inexpressible):
                express(row)
        else:
            assert express(row).measured > 0


# What is predicted

NEVER = "interleaved|trained with MTP|without CUDA graphs"
"""What the notes of rows say that no plan here does."""

REFUSED = (
    *("MB20", "MB21", "MB27", "MB28"),  # NVFP4
    *("MB35", "MB36", "MB37", "MB38", "MB39", "MB49", "MB55", "MB59", "MB63", "ME04", "ME05"),  # GPT-OSS
    *("RS11", "RS17", "RS25", "RS29", "MZ03", "MZ09", "MZ13", "MZ17", "PH59", "PH60"),  # ranks of experts
)
"""Rows that no plan here says the same as; docs/why/accuracy-rows.md has why."""

WHY = ROOT / "docs" / "why"
MOST = 0.10
"""Of the median error of a group's rows that constants were fitted to."""

MORE = {
    "generate experts, vllm, a100-80gb": 0.24,
    "generate long prompts, sglang, h20-96gb": 0.55,
    "generate long prompts, vllm, h100-80gb": 0.29,
    "generate long prompts, vllm, rtx4090-24gb": 0.20,
    "generate many at a time, vllm, a100-80gb": 0.11,
    "generate one row, hf-generate, a100-80gb": 0.21,
    "generate one row, hf-generate, h20-96gb": 0.17,
    "generate one row, sglang, h20-96gb": 0.33,
    "generate rollouts of large experts, vllm, b200-180gb": 0.17,
    "generate whole, trtllm, h100-80gb": 0.15,
    "generate whole, vllm, h100-80gb": 0.11,
    "logprobs rollouts of experts, megatron, gb200-186gb": 0.15,
    "logprobs rollouts of large experts, megatron, h100-80gb": 0.50,
    "logprobs rollouts, fsdp, h100-80gb": 0.16,
    "logprobs rollouts, fsdp, h20-96gb": 0.12,
    "step large experts, nemo-rl, gb200-186gb": 0.18,
    "step large experts, nemo-rl, h100-80gb": 0.19,
    "step, nemo-rl, gb200-186gb": 0.17,
    "train experts, megatron, gb200-186gb": 0.21,
    "train experts, megatron, h100-80gb": 0.49,
    "train large experts, megatron, b200-180gb": 0.22,
    "train large experts, megatron, b300-288gb": 0.41,
    "train large experts, megatron, gb200-186gb": 0.15,
    "train rollouts of experts, megatron, gb200-186gb": 0.44,
    "train rollouts of experts, megatron, h100-80gb": 0.16,
    "train rollouts of large experts, megatron, h100-80gb": 0.31,
    "train rollouts, fsdp, h20-96gb": 0.18,
    "train, fsdp2, h100-80gb": 0.12,
    "train, fsdp-megatron, gb200-186gb": 0.32,
    "train, fsdp-megatron, gb300-278gb": 0.44,
    "train, fsdp-megatron, h100-80gb": 0.38,
    "train, internevo, a100-80gb": 0.13,
    "weights, megatron->vllm, h100-80gb": 0.31,
}
"""The same of groups where it is more; docs/why/accuracy.md says what is not known of them."""


@pytest.fixture(scope="module")
def results() -> tuple[list[Compared], list[tuple[Row, str]]]:
    return compare([row for path in MEASURED for row in read_rows(path)])


def beyond(groups: list[Group]) -> dict[str, float]:
    """The groups whose median error is more than their band."""
    return {group.name: round(group.median, 3) for group in groups if group.median > MORE.get(group.name, MOST)}


def test_no_group_leaves_its_band(results: tuple[list[Compared], list[tuple[Row, str]]]) -> None:
    bands = ((32, 0.05, 0.87), (55, 0.085, 0.81))
    for rows, (count, most, near) in zip(split_by_fit(results[0]), bands, strict=True):
        *groups, whole = grouped(rows)
        assert beyond(groups) == {}
        assert len(groups) == count
        assert whole.median <= most
        assert whole.near >= near


def test_sources_that_were_fitted_have_no_bias(results: tuple[list[Compared], list[tuple[Row, str]]]) -> None:
    fitted, _ = split_by_fit(results[0])
    bias = {name: group.to_json()["bias"] for name, group in by_phase(fitted)}
    assert {name: told for name, told in bias.items() if abs(told) > 0.05} == {}


def test_a_source_is_fitted_or_unseen_with_all_its_rows(tmp_path: Path) -> None:
    head, line = f"{HEAD},source", "{},https://github.com/{}/x"
    first, second, own = rows(
        tmp_path,
        head,
        line.format(GOOD, "mosaicml/llm-foundry"),
        line.format(GOOD, "NVIDIA-NeMo/RL/pull/1"),
        f"{GOOD},measured here",
    )
    assert first.publisher.fitted and not second.publisher.fitted and not own.publisher.fitted
    assert second.publisher.name == "NeMo-RL, transfers of weights", "the longest beginning decides"
    assert own.publisher.name == "measured here"
    assert len({publisher.prefix for publisher in publishers()}) == len(publishers())
    by_name: dict[str, set[bool]] = {}
    for publisher in publishers():
        by_name.setdefault(publisher.name, set()).add(publisher.fitted)
    assert all(len(fitted) == 1 for fitted in by_name.values()), "a name is fitted or it is not"


def test_phases_have_all_rows(results: tuple[list[Compared], list[tuple[Row, str]]]) -> None:
    for part in split_by_fit(results[0]):
        *phases, (_, whole) = by_phase(part)
        assert sum(len(group.rows) for _, group in phases) == len(whole.rows) == len(part)


TABLE = r"(<!-- {} -->\n).*?(?=\n<!-- end -->)"
SUMMARY = r"(\A# [^\n]+\n\n)(?:- [^\n]+\n){2}- [^\n]+"
"""What a page begins with: its title, and three lines whose figures are those of the tables."""


@pytest.mark.parametrize(
    ("name", "place", "printed"),
    [
        ("accuracy.md", TABLE.format("accuracy"), lambda found, left: all_groups(found)),
        ("accuracy-rows.md", TABLE.format("accuracy: rows"), all_rows),
        ("accuracy.md", SUMMARY, lambda found, left: summary(found)),
        ("accuracy-rows.md", SUMMARY, rows_summary),
    ],
    ids=["tables", "rows", "summary", "summary of rows"],
)
def test_the_page_has_what_is_printed(
    results: tuple[list[Compared], list[tuple[Row, str]]],
    request: pytest.FixtureRequest,
    name: str,
    place: str,
    printed: Callable[[list[Compared], list[tuple[Row, str]]], str],
) -> None:
    path, text = WHY / name, printed(*results)
    now, times = re.subn(place, lambda found: f"{found[1]}{text}", path.read_text("utf-8"), flags=re.DOTALL)
    assert times == 1
    if request.config.getoption("--update-golden"):
        path.write_text(now, "utf-8")
    assert path.read_text("utf-8") == now, "`pytest --update-golden tests/explain/test_accuracy.py` writes it anew"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("README.md", r"beside {count} measured ones .* error \[{unseen:.0%} for unseen sources\].* {fitted:.1%} for"),
        ("docs/start/features.md", r"with \[{count} measurements\].* is {fitted:.1%}, of unseen ones {unseen:.1%}\."),
        ("CHANGELOG.md", r"beside {count} measurements .* unseen ones {unseen:.1%}\)"),
    ],
)
def test_other_pages_have_the_same_figures(
    results: tuple[list[Compared], list[tuple[Row, str]]], name: str, sentence: str
) -> None:
    fitted, unseen = (Group("", rows).median for rows in split_by_fit(results[0]))
    figures = sentence.format(count=len(results[0]), fitted=fitted, unseen=unseen)
    assert re.search(figures, (ROOT / name).read_text("utf-8")), figures
