"""verl's own GRPO trainer (`main_ppo`: FSDP2, a vLLM server, TransferQueue) on the toy task, on `verl_cpu.py`.

    python verl_grpo.py --steps 12
    python verl_grpo.py --steps 12 --gpus 2 --poll 0.02
    python verl_grpo.py --steps 12 --behind 1 --poll 0.02

verl looks every 2 s whether generation is done; no real step notices that, and a step of the toy task is largely made
of it. `--poll` makes that time shorter. With `--behind K` its asynchronous trainer (`separate_async`) is used: as many
processes again generate, batches are asked for K steps ahead, and weights go to the servers after each step
(`verl_sockets.py`). The first steps, in which what is ahead is made, do not count. Options that are not known here go
to verl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import clock
import toy

SKIPPED = 2


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4, help="samples per prompt")
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--gpus", type=int, default=1, help="processes that train, and servers that generate")
    parser.add_argument("--behind", type=int, default=0, help="batches that are sampled ahead, beside training")
    parser.add_argument("--epochs", type=int, default=1, help="updates with the same rows in a step")
    parser.add_argument("--poll", type=float, default=None, help="seconds between two looks at what is generated")
    parser.add_argument("--out", default="")
    return parser.parse_known_args()


def prepare(folder: Path, prompts: int) -> None:
    """The model and the prompts, as verl wants them."""
    import pandas

    toy.make_model(0).save_pretrained(folder / "model")
    tokenizer = toy.make_tokenizer(newline=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": text}],
            "ability": "toy",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index, text in enumerate(toy.prompt_texts(prompts))
    ]
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")


def overrides(options: argparse.Namespace, folder: Path) -> list[str]:
    """What differs from verl's defaults: the toy task, float32, one micro-batch, no KL, nothing saved."""
    micro = options.prompts * options.n // options.gpus
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    text = f"""
algorithm.adv_estimator=grpo
data.train_files={folder}/train.parquet data.val_files={folder}/train.parquet
data.train_batch_size={options.prompts} data.max_prompt_length={toy.PROMPT_LEN} data.max_response_length={options.new}
data.dataloader_num_workers=0 data.shuffle=False
actor_rollout_ref.model.path={folder}/model
actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
{actor}.strategy=fsdp2 {actor}.optim.lr={options.lr} {actor}.optim.weight_decay=0.0
{actor}.ppo_mini_batch_size={options.prompts} {actor}.ppo_micro_batch_size_per_gpu={micro}
{actor}.use_kl_loss=False {actor}.use_torch_compile=False
{actor}.fsdp_config.model_dtype=fp32 {actor}.fsdp_config.use_torch_compile=False
+{actor}.fsdp_config.mixed_precision.param_dtype=fp32
+{actor}.fsdp_config.mixed_precision.reduce_dtype=fp32
+{actor}.fsdp_config.mixed_precision.buffer_dtype=fp32
{rollout}.name=vllm {rollout}.dtype=float32 {rollout}.n={options.n}
{rollout}.tensor_model_parallel_size=1 {rollout}.enforce_eager=True
{rollout}.free_cache_engine=False +{rollout}.enable_sleep_mode=False {rollout}.ignore_eos=True
{rollout}.load_format=auto {rollout}.max_model_len={toy.PROMPT_LEN + options.new + 8}
{rollout}.gpu_memory_utilization=0.1 {rollout}.log_prob_micro_batch_size_per_gpu={micro}
{rollout}.checkpoint_engine.update_weights_bucket_megabytes=64
{rollout}.agent.num_workers=1
reward.num_workers=1 reward.custom_reward_function.path={HERE}/verl_reward.py
trainer.nnodes=1 trainer.n_gpus_per_node={options.gpus} trainer.logger=[console] trainer.val_before_train=False
trainer.test_freq=-1 trainer.save_freq=-1 trainer.total_epochs={options.steps}
trainer.total_training_steps={options.steps}
trainer.resume_mode=disable trainer.default_local_dir={folder}/ckpt trainer.v1.trainer_mode=sync trainer.use_v1=True
+ray_kwargs.ray_init.num_gpus={options.gpus * (2 if options.behind else 1)} ray_kwargs.ray_init.num_cpus=32
trainer.device=cpu {actor}.ppo_epochs={options.epochs}
"""
    if options.behind:
        text += f"""
trainer.v1.trainer_mode=separate_async trainer.v1.separate_async.num_warmup_batches={options.behind}
trainer.v1.separate_async.parameter_sync_step=1 actor_rollout_ref.hybrid_engine=False
{rollout}.nnodes=1 {rollout}.n_gpus_per_node={options.gpus}
{rollout}.checkpoint_engine.backend=sockets {rollout}.checkpoint_engine.custom_backend_module=verl_sockets
"""
    return text.split()


def environment(poll: float | None) -> dict[str, str]:
    found = {
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "WANDB_MODE": "disabled",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    return found if poll is None else found | {"PEERS_VERL_POLL": str(poll)}


def metrics(line: str) -> dict[str, float]:
    """What verl's console logger says of a step."""
    pairs = re.findall(r"([\w/@\-]+):(np\.\w+\([^)]*\)|-?[\d.]+(?:e[-+]?\d+)?)", line)
    return {name: float(re.sub(r"np\.\w+\((.*)\)", r"\1", value)) for name, value in pairs}


def main() -> None:
    options, rest = arguments()
    folder = Path(tempfile.mkdtemp(prefix="verl"))
    prepare(folder, options.prompts)
    mark, before = clock.Tree(), clock.host_busy()
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(options, folder), *rest]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment(options.poll), **mark.env},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    steps: list[dict[str, float]] = []
    cpu: list[float] = []
    tail: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        tail = [*tail[-20:], line]
        if " step:" in line and "timing_s/step:" in line:
            steps.append(metrics(line))
            cpu.append(mark.cpu_s())
    process.wait()
    if len(steps) <= SKIPPED:
        sys.exit("".join(tail))
    after = clock.host_busy()

    def middle(name: str) -> float:
        return clock.med([step[name] for step in steps[SKIPPED:] if name in step])

    rows, seconds, generate = options.prompts * options.n, middle("timing_s/step"), middle("timing_s/gen")
    result = {
        "what": "verl",
        "algo": "grpo",
        "gen_backend": "vllm server",
        "gpus": options.gpus,
        "poll": options.poll,
        "prompts": options.prompts,
        "n": options.n,
        "new_tokens": options.new,
        "samples_per_step": rows,
        "steps": len(steps),
        "step_s": seconds,
        "samples_per_s": rows / seconds,
        "tokens_per_s": rows * options.new / seconds,
        "cpu_s_per_step": clock.med([b - a for a, b in zip(cpu[1:], cpu[2:], strict=False)]),
        "generate_s": generate,
        "rest_s": seconds - generate,
        "spans": {name.removeprefix("timing_s/"): middle(name) for name in steps[-1] if name.startswith("timing_s/")},
        "reward_curve": [round(step["critic/score/mean"], 4) for step in steps],
        "host_busy": (after[0] - before[0]) / max(1, after[1] - before[1]),
        "env": clock.stamp(),
    }
    print(json.dumps(result))
    if options.out:
        with open(options.out, "a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
