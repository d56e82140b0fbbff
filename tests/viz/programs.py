"""Programs to draw: graph texts with barriers, loops, versions, and whatever is awkward."""

from __future__ import annotations

from rlgraph.ir.graph import Program
from rlgraph.ir.text.parse import parse_program

PPO = """
program ppo
axis prompts
axis prompts.token inside prompts
model actor = causal_lm("Qwen/Qwen2.5-7B-Instruct")
model critic = value_lm("Qwen/Qwen2.5-7B-Instruct")
model ref = frozen(copy("actor")) : causal_lm
model reward = frozen(reward_lm("Skywork/Skywork-Reward-V2-Qwen3-8B"))
data prompts = jsonl("prompts.jsonl", batch=1024)

phase step(actor@0: model<actor>, critic@0: model<critic>, ref@0: model<ref>, reward@0: model<reward>, prompts@0: cursor<prompts>):
  prompts: table[prompts; data=?], prompts@1: cursor<prompts> <- read(prompts@0) per batch because "a data source is read a batch at a time"
  rollout: table[prompts; token=prompts.token; sampled=1.0; data=?] <- generate(actor@0, prompts) {max_tokens=512, temperature=1.0, key="rollout"} per prompts
  old_logp: float[prompts.token] <- logprobs(actor@0, rollout) per prompts
  ref_logp: float[prompts.token] <- logprobs(ref@0, rollout) per prompts
  value: float[prompts.token] <- values(critic@0, rollout) per prompts
  score: float[prompts] <- score(reward@0, rollout) per prompts
  rollout.end: bool[prompts.token] <- column(rollout) {name="end"} per prompts
  r: float[prompts.token] = score * rollout.end - 0.05 * (old_logp - ref_logp) per prompts
  adv: float[prompts.token] = discount(r + 1.0 * next(value) - value, 1.0 * 0.95) per prompts
  target: float[prompts.token] = adv + value per prompts
  adv_w: float[prompts.token] = (adv - mean(adv)) / (std(adv) + 1e-08) per batch because "mean(adv) is over the whole batch"
  actor@1: model<actor>, critic@1: model<critic> <- minibatch(actor@0, critic@0, rollout, value, target, old_logp, adv_w) {axis="prompts", parts=8, epochs=2, key="slices"} per batch because "slices are of the whole batch":
    given actor@2: model<actor>, critic@2: model<critic>
    critic@3: model<critic> <- train(critic@2, rollout, value, target) {lr=5e-06} per batch because "an optimizer step needs the gradient of all its rows":
      given critic@4: model<critic>
      v: float[prompts.token] <- values(critic@4, rollout) per prompts
      v_cut: float[prompts.token] = clip(v, value - 0.2, value + 0.2) per prompts
      loss: float = 0.5 * mean(maximum((v - target) ** 2, (v_cut - target) ** 2)) per prompts
      yield loss
    actor@3: model<actor> <- train(actor@2, rollout, old_logp, adv_w) {lr=1e-06} per batch because "an optimizer step needs the gradient of all its rows":
      given actor@4: model<actor>
      actor.logprobs: float[prompts.token] <- logprobs(actor@4, rollout) per prompts
      ratio: float[prompts.token] = exp(actor.logprobs - old_logp) per prompts
      loss.2: float = mean(-minimum(ratio * adv_w, clip(ratio, 1 - 0.2, 1 + 0.2) * adv_w)) per prompts
      yield loss.2
    yield actor@3, critic@3
  reward: float = mean(score) per batch because "mean(score) is over the whole batch"
  value_error: float = mean((value - target) ** 2) per batch because "mean(...) is over the whole batch"
  report(reward, value_error) {names=["reward", "value_error"]} per batch because "a metric is over all rows"
  yield actor@1, critic@1, ref@0, reward@0, prompts@1
"""

GRPO = """
program grpo
axis prompts
axis rollout in prompts
axis rollout.token inside rollout
model actor = causal_lm("Qwen/Qwen2.5-7B-Instruct")
model ref = frozen(copy("actor")) : causal_lm
data prompts = jsonl("gsm8k.jsonl", batch=512)
func correct = python("rewards.py:exact_match")

phase step(actor@0: model<actor>, ref@0: model<ref>, prompts@0: cursor<prompts>):
  prompts: table[prompts; data=?], prompts@1: cursor<prompts> <- read(prompts@0) per batch because "a data source is read a batch at a time"
  rollout: table[rollout; token=rollout.token; sampled=1.0; data=?] <- generate(actor@0, prompts) {n=16, max_tokens=1024, temperature=1.0, key="rollout"} per prompts
  score: float[rollout] <- call(rollout) {func="correct", names=[]} per rollout
  ref_logp: float[rollout.token] <- logprobs(ref@0, rollout) {temperature=1.0} per rollout
  adv: float[rollout] = (score - mean(score, to=prompts)) / (std(score, to=prompts) + 1e-06) per prompts because "mean(score, by=prompts) needs all of a prompt's rollouts"
  actor@1: model<actor>, kl: float[rollout.token] <- minibatch(actor@0, rollout, adv, ref_logp) {axis="prompts", parts=4, epochs=1, key="slices"} per batch because "slices are of the whole batch":
    given actor@2: model<actor>
    rollout.logprobs: float[rollout.token] <- column(rollout) {name="logprobs"} per rollout
    actor@3: model<actor>, kl.1: float[rollout.token] <- train(actor@2, rollout, rollout.logprobs, adv, ref_logp) {lr=1e-06, clip_norm=1.0} per batch because "an optimizer step needs the gradient of all its rows":
      given actor@4: model<actor>
      logp: float[rollout.token] <- logprobs(actor@4, rollout) {temperature=1.0} per rollout
      ratio: float[rollout.token] = exp(logp - rollout.logprobs) per rollout
      pg: float[rollout.token] = -minimum(ratio * adv, clip(ratio, 1 - 0.2, 1 + 0.2) * adv) per rollout
      kl.2: float[rollout.token] = exp(ref_logp - logp) - (ref_logp - logp) - 1 per rollout
      loss: float = mean(mean(pg + 0.001 * kl.2, to=rollout)) per rollout
      yield loss, kl.2
    yield actor@3, kl.1
  reward: float = mean(score) per batch because "mean(score) is over the whole batch"
  rollout.length: int[rollout] <- column(rollout) {name="length"} per rollout
  length: float = mean(rollout.length) per batch because "mean over the whole batch"
  kl.3: float = mean(kl) per batch because "mean over the whole batch"
  report(reward, length, kl.3) {names=["reward", "length", "kl"]} per batch because "a metric is over all rows"
  yield actor@1, ref@0, prompts@1
"""

LOOPS = """
program loops
axis prompts
axis rollout in prompts
axis rollout.token inside rollout
model actor = causal_lm("a")
model ref = frozen(copy("actor")) : causal_lm
data prompts = jsonl("p.jsonl", batch=8)
func correct = python("r.py:f")
state scale = 0.5
state seen[key] = 0.0

phase warmup(actor@0: model<actor>, prompts@0: cursor<prompts>) {steps=100}:
  prompts: table[prompts; data=?], prompts@1: cursor<prompts> <- read(prompts@0)
  rollout: table[rollout; token=rollout.token; sampled=1.0; data=?] <- generate(actor@0, prompts) {n=4, max_tokens=8, key="rollout"}
  actor@1: model<actor> <- train(actor@0, rollout) {lr=0.1}:
    given actor@2: model<actor>
    logp: float[rollout.token] <- logprobs(actor@2, rollout)
    loss: float = mean(-logp)
    yield loss
  yield actor@1, prompts@1

phase step(actor@0: model<actor>, ref@0: model<ref>, scale@0: float, seen@0: keyed<seen>, prompts@0: cursor<prompts>) {lag=2}:
  prompts@2: cursor<prompts>, rollout: table[rollout; token=rollout.token; sampled=1.0; data=?], hit: float[rollout] <- collect(prompts@0, actor@0) {rows=8, rounds=64, axis="prompts"} per batch because "how many rows are kept is known at the end":
    given prompts@1: cursor<prompts>
    prompts: table[prompts; data=?], prompts@3: cursor<prompts> <- read(prompts@1)
    rollout.1: table[rollout; token=rollout.token; sampled=1.0; data=?] <- generate(actor@0, prompts) {n=4, max_tokens=8, key="rollout"}
    hit.1: float[rollout] <- call(rollout.1) {func="correct", names=[]}
    kept: bool[prompts] = std(hit.1, to=prompts) > 0
    rollout.2: table[rollout; token=rollout.token; sampled=1.0; data=?], hit.2: float[rollout] <- keep(kept, rollout.1, hit.1) {axis="prompts"}
    yield prompts@3, rollout.2, hit.2
  scale@1: float = scale@0 * 0.5 + mean(hit)
  both: float[rollout], twice: float[rollout] = tensor per batch because "mean over <all> & \\"more\\"":
    centre = mean(hit)
    both = (hit - centre) * scale@0
    twice = both + both
  seen@1: keyed<seen> <- assign(seen@0, hit, both) per batch because "rows of one key may be anywhere in the batch"
  actor@1: model<actor> <- minibatch(actor@0, rollout, twice) {axis="prompts", parts=4, epochs=2, key="slices"}:
    given actor@2: model<actor>
    actor@3: model<actor> <- train(actor@2, rollout, twice, ref@0) {lr=0.1}:
      given actor@4: model<actor>
      logp: float[rollout.token] <- logprobs(actor@4, rollout)
      ref_logp: float[rollout.token] <- logprobs(ref@0, rollout)
      loss: float = mean((logp - ref_logp) * twice)
      yield loss
    yield actor@3
  ref@2: model<ref> <- every(ref@0, actor@1) {steps=20}:
    given ref@1: model<ref>
    ref@3: model<ref> <- update(ref@1, actor@1) {ema=0.99}
    yield ref@3
  report.hit: float = mean(hit)
  report(report.hit, scale@1) {names=["hit", "scale"]}
  yield actor@1, ref@2, scale@1, seen@1, prompts@2
"""

AWKWARD = """
program odd
axis rows
data rows = jsonl("<a>&\\"b\\".jsonl", batch=2)
func f = python("<script>alert(1)</script>.py:f")

phase step(rows@0: cursor<rows>):
  rows: table[rows; data=?], rows@1: cursor<rows> <- read(rows@0) per batch because "]]> & </script> <b>"
  rows.x: text[rows] <- column(rows) {name="</title>&\\"'"}
  same: bool[rows] = rows.x == "</svg><script>&\\"\\\\"
  y: float[rows] <- call(rows) {func="f", names=[]}
  yield rows@1
"""

EMPTY = """
program empty

phase step():
  yield
"""


def program(text: str) -> Program:
    return parse_program(text)


def long_program(count: int) -> Program:
    """A chain with shortcuts: every value uses the one before it and one far above."""
    lines = ["program long", "axis rows", "", "phase step(x.0: float):"]
    for at in range(1, count + 1):
        lines.append(f"  x.{at}: float = x.{at - 1} + x.{max(0, at - 1 - at % 7)} * 2.0")
    return program("\n".join([*lines, f"  yield x.{count}"]))


def wide_program(count: int) -> Program:
    """Groups of values that all use a few hubs and each other."""
    lines = ["program wide", "axis rows", "", "phase step(h.0: float):"]
    for at in range(1, count + 1):
        hub, near = at // 10 * 10 // 2, max(0, at - at % 9 - 1)
        lines.append(f"  h.{at}: float = exp(h.{hub}) + h.{near} * {at}.0")
    return program("\n".join([*lines, f"  yield h.{count}"]))


ALL = {"ppo": PPO, "grpo": GRPO, "loops": LOOPS, "awkward": AWKWARD, "empty": EMPTY}
