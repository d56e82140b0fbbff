"""rlgraph on the toy task, CPU: the whole system, from `toy_grpo.rlf` to the last optimizer step.

python rlgraph_bench.py --steps 25 --threads 2
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import clock
import toy

ap = argparse.ArgumentParser()
ap.add_argument("--prompts", type=int, default=64)
ap.add_argument("--n", type=int, default=4, help="samples per prompt")
ap.add_argument("--new", type=int, default=32)
ap.add_argument("--steps", type=int, default=25)
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--out", default="")
a = ap.parse_args()

import rlgraph


class Watch:
    """CPU seconds and the seconds of each kind of node; a step ends with its report."""

    def __init__(self):
        self.ends, self.generate, self.train = [], [], []

    def opening(self, what):
        pass

    def firing(self, node):
        if not self.ends:
            self.ends.append((time.perf_counter(), clock.cpu_s(), clock.host_busy()))

    def fired(self, node, seconds, tokens):
        if node.op == "generate":
            self.generate.append(seconds)
        if node.op == "train":
            self.train.append(seconds)
        if node.op == "report":
            self.ends.append((time.perf_counter(), clock.cpu_s(), clock.host_busy()))


folder = Path(tempfile.mkdtemp(prefix="toy"))
toy.make_model(a.seed).save_pretrained(folder)
toy.make_tokenizer().save_pretrained(folder)
watch = Watch()
made = rlgraph.compile(
    HERE / "toy_grpo.rlf",
    set={"base": folder, "batch": a.prompts, "n": a.n, "tokens": a.new, "lr": a.lr},
).run(a.steps, seed=a.seed, threads=a.threads, progress=False, observer=watch)

B = a.prompts * a.n
steps = list(zip(watch.ends, watch.ends[1:], strict=False))[3:]  # the first steps hold lazy initialisation
step = [after[0] - before[0] for before, after in steps]
cpu = [after[1] - before[1] for before, after in steps]
busy = [(after[2][0] - before[2][0]) / max(1, after[2][1] - before[2][1]) for before, after in steps]
m, gen = clock.med(step), clock.med(watch.generate[3:])
res = dict(
    what="rlgraph", algo="grpo", gen_backend="own", prompts=a.prompts, n=a.n, new_tokens=a.new, threads=a.threads,
    samples_per_step=B, steps=len(made.metrics), step_s=m, samples_per_s=B / m, tokens_per_s=B * a.new / m,
    cpu_s_per_step=clock.med(cpu), generate_s=gen, generate_tok_s=B * a.new / gen, train_s=clock.med(watch.train[3:]),
    rest_s=m - gen, reward_curve=[round(row["reward"], 4) for row in made.metrics], step_min=min(step), step_max=max(step),
    host_busy=clock.med(busy), env=clock.stamp(),
)  # fmt: skip
print(json.dumps(res))
if a.out:
    with open(a.out, "a") as f:
        f.write(json.dumps(res) + "\n")
