"""Ten public layouts of other systems: a model, what it samples, and where each piece of work runs.

What differs from the recipe is said at the layout: sglang is vLLM here, ZeRO's third stage `fsdp`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

GRPO = """
algorithm layout
model actor = {model}
{reference}
data prompts = jsonl("prompts.jsonl", batch={batch})
func judge = python("rewards.py:judge", over=row)
step{step}:
    rollout = actor.generate(prompts, n={samples}, max_tokens={answer}, temperature=1.0)
    score = judge(rollout)
    adv = score - mean(score, by=prompts)
    {kept}
    {minibatch}
        train actor(lr=1e-6):
            ratio = exp(actor.logprobs(rollout) - rollout.logprobs)
            minimize mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv){penalty})
"""
SHIPPED = Path(__file__).resolve().parent.parent / "rlgraph" / "algorithms"


@dataclass(frozen=True)
class Layout:
    """A recipe as a program and a schedule."""

    name: str
    source: str
    """A file of the recipe, with the commit that was read."""
    cluster: str
    prompt: int
    """The most tokens of a prompt."""
    answer: int
    """The most tokens of an answer."""
    program: str
    schedule: str
    share: float | None
    """The share of a device that the recipe gives to sampling; None: it does not say."""


def grpo(
    model: str, batch: int, samples: int, answer: int, updates: int = 1, reference: bool = True, step: str = ""
) -> str:
    """Return the text of GRPO. model: a name, or what `causal_lm` is told."""
    named = model if "(" in model else f'causal_lm("{model}", dtype="bfloat16")'
    return GRPO.format(
        model=named,
        reference="model ref = frozen(actor)" if reference else "",
        kept="before = ref.logprobs(rollout)" if reference else "",
        penalty=" + 0.001 * k3(actor.logprobs(rollout), before)" if reference else "",
        minibatch=f"minibatch prompts(parts={updates}):",
        batch=batch,
        samples=samples,
        answer=answer,
        step=step,
    )


def ppo(base: str, judge: str, answer: int) -> str:
    """Return the text of PPO as it ships, with other models and answers."""
    text = (SHIPPED / "ppo.rlf").read_text("utf-8")
    text = re.sub(r"(param base +=).*", rf'\1 "{base}"', text)
    text = re.sub(r"(param judge +=).*", rf'\1 "{judge}"', text)
    return text.replace("max_tokens=512", f"max_tokens={answer}").replace("algorithm ppo", "algorithm layout")


LAYOUTS = (
    Layout(
        "7B on 8, shared (verl)",
        "volcengine/verl@3f38806 examples/grpo_trainer/run_qwen2-7b_math_megatron.sh; Qwen2.5-7B has Qwen2-7B's sizes",
        "1x8:h100-80gb",
        1024,
        1024,
        grpo("Qwen/Qwen2.5-7B-Instruct", 1024, 5, 1024, updates=4),
        "pool all = 8 devices\n"
        "place actor.train, ref on all(engine=megatron, tp=2, pp=2)\n"
        "place actor.generate on all(engine=vllm, tp=2, max_len=2048)\n",
        0.6,
    ),
    Layout(
        "30B-A3B on 8, shared (verl)",
        "volcengine/verl@6e7fdc2 examples/grpo_trainer/run_qwen3moe-30b_megatron_96gb.sh; AdamW is on the host",
        "1x8:h20-96gb",
        2048,
        8192,
        grpo("Qwen/Qwen3-30B-A3B-Base", 512, 16, 8192, updates=4, reference=False),
        "pool all = 8 devices\n"
        "place actor.train on all(engine=megatron, ep=8)\n"
        "place actor.generate on all(engine=vllm, tp=4, max_len=10240)\n",
        0.7,
    ),
    Layout(
        "72B with adapters on 8, shared (verl)",
        "volcengine/verl@23b8716 docs/advance/ppo_lora.rst; FSDP is `fsdp`",
        "1x8:h100-80gb",
        512,
        1024,
        grpo('causal_lm("Qwen/Qwen2.5-72B-Instruct", dtype="bfloat16", lora=lora(rank=32, alpha=32.0))', 64, 5, 1024),
        "pool all = 8 devices\n"
        "place actor.train, ref on all(engine=transformers, fsdp=8)\n"
        "place actor.generate on all(engine=vllm, tp=8, max_len=1536)\n",
        0.4,
    ),
    Layout(
        "8B PPO on 8, shared (OpenRLHF)",
        "OpenRLHF/OpenRLHF@17b714b examples/scripts/train_ppo_ray_hybrid_engine.sh; ZeRO's third stage is `fsdp`, "
        "and another judge of 8B",
        "1x8:h100-80gb",
        1024,
        1024,
        ppo("meta-llama/Meta-Llama-3-8B", "Skywork/Skywork-Reward-V2-Llama-3.1-8B", 1024),
        "pool all = 8 devices\n"
        "place actor.train, actor.logprobs, critic, ref, reward on all(engine=transformers, fsdp=8)\n"
        "place actor.generate on all(engine=vllm, tp=2, max_len=2048)\n",
        0.5,
    ),
    Layout(
        "8B on 2 x 8, shared (NeMo-RL)",
        "NVIDIA-NeMo/RL@36b0a7b examples/configs/recipes/llm/performance/grpo-llama3.1-8b-instruct-2n8g.yaml",
        "2x8:h100-80gb",
        1024,
        3072,
        grpo("meta-llama/Llama-3.1-8B-Instruct", 64, 32, 3072, updates=4),
        "pool all = 16 devices\n"
        "place actor.train, ref on all(engine=megatron, pp=2)\n"
        "place actor.generate on all(engine=vllm, tp=1, max_len=4096)\n",
        0.6,
    ),
    Layout(
        "32B on 4 x 8, shared (NeMo-RL)",
        "NVIDIA-NeMo/RL@0b88ccc examples/configs/recipes/llm/performance/grpo-qwen3-32b-4n8g.yaml",
        "4x8:h100-80gb",
        1024,
        3072,
        grpo("Qwen/Qwen3-32B", 64, 32, 3072, updates=4),
        "pool all = 32 devices\n"
        "place actor.train, ref on all(engine=megatron, tp=4, pp=4)\n"
        "place actor.generate on all(engine=vllm, tp=4, max_len=4096)\n",
        0.6,
    ),
    Layout(
        "30B-A3B on 4 x 8, apart (NeMo-RL)",
        "NVIDIA-NeMo/RL@ab8a54b examples/configs/recipes/llm/performance/grpo-qwen3-30ba3b-4n8g-async-1off.yaml",
        "4x8:h100-80gb",
        1024,
        3072,
        grpo("Qwen/Qwen3-30B-A3B", 64, 32, 3072, step=" async(lag=1)"),
        "pool learn = 16 devices\npool play = 16 devices\n"
        "place actor.train, ref on learn(engine=megatron, pp=2, ep=8)\n"
        "place actor.generate on play(engine=vllm, tp=2, max_len=4096)\n",
        0.8,
    ),
    Layout(
        "4B on 8, shared (slime)",
        "THUDM/slime@05a0752 scripts/run-qwen3-4B.sh; sglang is vLLM",
        "1x8:h100-80gb",
        1024,
        8192,
        grpo("Qwen/Qwen3-4B", 32, 8, 8192),
        "pool all = 8 devices\n"
        "place actor.train, ref on all(engine=megatron, tp=2)\n"
        "place actor.generate on all(engine=vllm, tp=2, max_len=9216)\n",
        0.7,
    ),
    Layout(
        "1.5B on 2 x 8, apart (AReaL)",
        "inclusionAI/AReaL@2158804 examples/math/boba_grpo_vllm.yaml; rows of any age below 4",
        "2x8:h100-80gb",
        2048,
        30720,
        grpo("Qwen/Qwen2.5-1.5B-Instruct", 512, 16, 30720, updates=4, reference=False, step=" async(staleness=4)"),
        "pool learn = 8 devices\npool play = 8 devices\n"
        "place actor.train on learn(engine=transformers, fsdp=8, recompute=true)\n"
        "place actor.generate on play(engine=vllm, tp=2, max_len=32768)\n",
        0.9,
    ),
    Layout(
        "7B on 8, apart (TRL)",
        "huggingface/trl@01a3e70 docs/source/vllm_integration.md: a server on 4 GPUs, ZeRO's third stage on the others",
        "1x8:h100-80gb",
        512,
        512,
        grpo("Qwen/Qwen2.5-7B", 64, 8, 512, reference=False),
        "pool learn = 4 devices\npool play = 4 devices\n"
        "place actor.train on learn(engine=transformers, fsdp=4)\n"
        "place actor.generate on play(engine=vllm, tp=4)\n",
        None,
    ),
)
