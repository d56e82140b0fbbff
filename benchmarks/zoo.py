"""Do the algorithms that ship learn? Each that takes prompts and a score of their answers teaches the same small model
to spell words backward, from the same warm start.

    python benchmarks/zoo.py                  # a minute for each on one core
    python benchmarks/zoo.py grpo vapo        # these alone
    python benchmarks/zoo.py --draw           # the picture of all that were run: docs/img/algorithms.png

What is written otherwise than in the files that ship: the data, the score, which is the verifier's also where a reward
model gives it, 256 samples a step (8 for a prompt where
there are several), 4 updates a step at most, answers of 8 letters, and learning rates, which are made for models of a
thousand times the size. A row is printed of the mean reward of the first and of the last ten steps. Curves are kept in
`build/zoo`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rlgraph
from rlgraph.cli.listing import shipped_algorithms
from rlgraph.dsl import tree
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.dsl.parse import parse
from rlgraph.errors import RlgraphError, Source

EXAMPLE = ROOT / "examples" / "spell_backward"
PICTURE = ROOT / "docs" / "img" / "algorithms.png"
WARM_UP_STEPS = 90
SAMPLES = 256
"""Of a step, where nothing is left out."""
REPLACED = [
    (r"max_tokens=\w+", "max_tokens=8"),
    (r"(train actor\(lr=)[^,)]+", r"\g<1>2e-4"),
    (r"(train (?:critic|prm)\(lr=)[^,)]+", r"\g<1>5e-4"),
    (r"(param limit *= *)\d+", r"\g<1>8"),
    (r"(param n *= *)\d+", r"\g<1>8"),
    (r"parts=\d+", "parts=4"),
    (r"(phase \w+\(steps=)\d+", r"\g<1>20"),
    (r"\bprompts\.id\b", "prompts.index"),
    (r"(?m)^model reward *= *frozen\(reward_lm\(.*", "func correct = reasoning_gym()"),
    (r"\breward\.score\(", "correct("),
]
"""What is written in place of what, in the text of a program with all that it uses."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="NAME")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--draw", action="store_true", help="draw what was run, and run nothing")
    chosen = parser.parse_args()
    if chosen.draw:
        draw(chosen.out)
        return 0
    programs = {
        name: text for name, text in adapted_programs().items() if name in chosen.algorithms or not chosen.algorithms
    }
    if unknown := set(chosen.algorithms) - set(programs):
        print(f"not among those that take prompts and a score: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    start = chosen.out / "start" / "models" / "actor"
    if not start.exists():
        rlgraph.compile(EXAMPLE / "sft.rlf").run(WARM_UP_STEPS, out=chosen.out / "start", progress=False)
    print("| algorithm | reward, first ten steps | last ten |\n|---|--:|--:|", flush=True)
    for name, text in programs.items():
        try:
            rewards = curve(name, text, start, chosen.out, chosen.steps)
        except RlgraphError as error:
            print(f"| {name} | {error} | |", flush=True)
            continue
        (chosen.out / f"{name}.json").write_text(json.dumps(rewards), "utf-8")
        print(f"| {name} | {mean(rewards[:10]):.2f} | {mean(rewards[-10:]):.2f} |", flush=True)
    return 0


def adapted_programs() -> dict[str, str]:
    """Return the text of every algorithm that takes `prompts` alone and a score of a function or of a reward model, as
    it is run here."""
    texts = {}
    for name, flat in flat_programs().items():
        text = replaced(flat.text, REPLACED)
        parsed = parse(Source(f"{name}.rlf", text))
        declared = {(d.kind, d.name) for d in parsed.declarations if isinstance(d, tree.Declaration)}
        outside = {(kind, named) for kind, named in declared if kind in ("data", "func", "env")}
        if outside == {("data", "prompts"), ("func", "correct")} and "reward_lm(" not in text:
            texts[name] = text
    return texts


def flat_programs() -> dict[str, Source]:
    """Return every algorithm that ships, with the text of all that it uses."""
    return {name: inline_used_programs(Source(f"{name}.rlf", text)) for name, text in shipped_algorithms().items()}


def replaced(text: str, patterns: Iterable[tuple[str, str]]) -> str:
    for pattern, other in patterns:
        text = re.sub(pattern, other, text)
    return text


def curve(name: str, text: str, start: Path, out: Path, steps: int) -> list[float]:
    """Return the mean reward of the samples of every step."""
    batch = SAMPLES // 8 if re.search(r"\bn=\w", text) else SAMPLES
    data = f'python("{EXAMPLE / "tasks.py"}:words", split="train", size=2000, batch={batch})'
    changed: dict[str, str | float | bool | Path] = {"base": start, "prompts": data, "correct": "reasoning_gym()"}
    changed |= {rate: "2e-4" for rate in re.findall(r"^param (rate)\b", text, re.MULTILINE)}
    changed |= {rate: "5e-4" for rate in re.findall(r"^param (rate_v)\b", text, re.MULTILINE)}
    run = rlgraph.compile(text, set=changed, name=f"{name}.rlf").run(
        steps, out=out / name, overwrite=True, progress=False
    )
    return [row["reward"] for row in run.metrics if "reward" in row]


def draw(out: Path) -> None:
    """Draw the curves that were kept, a panel for each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*.json"))}
    columns = 6
    rows = -(-len(curves) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(2 * columns, 1.7 * rows), sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    for panel in panels.flat[len(curves) :]:
        panel.set_visible(False)
    for panel, (name, rewards) in zip(panels.flat, curves.items(), strict=False):
        smooth = [mean(rewards[max(0, at - 5) : at + 5]) for at in range(len(rewards))]
        panel.plot(rewards, color="#9db7e8", linewidth=0.8)
        panel.plot(smooth, color="#2f5fc4", linewidth=1.6)
        panel.set_title(name, fontsize=9)
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("reward of samples", fontsize=9)
    figure.savefig(PICTURE, dpi=110)
    print(f"wrote {PICTURE}")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
