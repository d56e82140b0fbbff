"""Steps of training of a model as wide as Qwen2.5-0.5B, with its vocabulary of 151,936 tokens, on rows that are the
same for all: CPU seconds with rlgraph's head in tiles, with all logits of some tokens at a time as it was before, and
with TRL's trainer, whose loss is computed in chunks. Supervised, or with `--samples` the update of GRPO on so many
answers to a prompt that are there already. A process for each: in turns, or all at the same time, so that what else a
machine does is the same for all.

    python benchmarks/peers/vocabulary.py --trl trlv/bin/python
    python benchmarks/peers/vocabulary.py --trl trlv/bin/python --rows 1 --samples 8 --prompt 128 --tokens 256
    python benchmarks/peers/vocabulary.py --trl trlv/bin/python --layers 2 --rows 1 --at-once --bfloat16
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS = {"trl": "TRL", "chunks": "rlgraph, all logits of some tokens at a time", "tiles": "rlgraph, head in tiles"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", default=sys.executable, help="the Python that has TRL")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="in a row, or in an answer")
    parser.add_argument("--samples", type=int, default=0, help="GRPO: answers to each prompt; 0: supervised training")
    parser.add_argument("--prompt", type=int, default=128, help="GRPO: tokens of a prompt, before those of `--tokens`")
    parser.add_argument("--bfloat16", action="store_true", help="products in bfloat16, of float32 weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="that are measured, after a first one")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", action="store_true", help="not in turns: they compete for cores alike")
    parser.add_argument("--way", choices=list(WAYS), help="measure this one only, in this process")
    return parser.parse_args()


def main():
    options = arguments()
    if options.way:
        times = {"trl": with_trl, "chunks": with_rlgraph, "tiles": with_rlgraph}[options.way](options)
        # A first step makes room for the optimizer's numbers.
        print(json.dumps(times[1:]))
        return
    seconds = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        running = {}
        for way in WAYS:
            running[way] = started(way, options)
            if not options.at_once:
                running[way].wait()
        for way, process in running.items():
            printed, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"{WAYS[way]} failed")
            seconds[way] += json.loads(printed.splitlines()[-1])
    first = statistics.median(cpu for cpu, _ in seconds["trl"])
    dtype = "bfloat16" if options.bfloat16 else "float32"
    if options.samples:
        rows = f"{options.rows} x {options.samples} answers of {options.tokens} tokens to prompts of {options.prompt}"
    else:
        rows = f"{options.rows} x {options.tokens} tokens"
    print(f"{options.layers} layers, {rows}, products in {dtype}")
    print("| | CPU s a step | least | speed beside TRL |\n|---|--:|--:|--:|")
    for way, name in WAYS.items():
        cpu = [cpu for cpu, _ in seconds[way]]
        middle = statistics.median(cpu)
        print(f"| {name} | {middle:.1f} | {min(cpu):.1f} | {first / middle:.2f} |")


def started(way, options):
    program = options.trl if way == "trl" else sys.executable
    return subprocess.Popen([program, *sys.argv, "--way", way], stdout=subprocess.PIPE, text=True)


def shape(options):
    return {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "vocab_size": options.vocabulary,
    }


def drawn_rows(options):
    return drawn(options, options.rows, options.tokens, 0)


def drawn(options, rows, tokens, seed):
    dice = random.Random(seed)
    return [[dice.randrange(3, options.vocabulary) for _ in range(tokens)] for _ in range(rows)]


def drawn_answers(options):
    """Prompts, their answers, one after the other, and an advantage for each answer."""
    answers = drawn(options, options.rows * options.samples, options.tokens, 1)
    advantages = [1.0 if number % 2 else -1.0 for number in range(len(answers))]
    return drawn(options, options.rows, options.prompt, 0), answers, advantages


class Clock:
    """CPU and wall seconds of steps that follow one another."""

    def __init__(self):
        self.steps, self.last = [], None

    def tick(self):
        now = time.process_time(), time.perf_counter()
        if self.last is not None:
            self.steps.append([now[0] - self.last[0], now[1] - self.last[1]])
        self.last = now


def with_rlgraph(options):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch

    torch.set_num_threads(1)
    from rlgraph.backends.engines.base import MicroBatch, TrainOptions
    from rlgraph.backends.engines.sequences import Sequences
    from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
    from rlgraph.backends.engines.tokenizers import WordTokenizer
    from rlgraph.backends.engines.transformers.engine import TransformersEngine
    from rlgraph.backends.engines.transformers.head import Head

    if options.way == "chunks":
        Head._matrix = lambda self: None
    source = RandomWeights("qwen2", shape(options), WordTokenizer("a b c"))
    autocast = "bfloat16" if options.bfloat16 else None
    engine = TransformersEngine.open(ModelSpec("causal_lm", source, autocast=autocast), threads=options.threads)
    if options.samples:
        prompts, answers, advantages = drawn_answers(options)
        each = [prompt for prompt in prompts for _ in range(options.samples)]
        sequences = Sequences.from_pairs(each, answers)
        scored, advantage = len(answers) * options.tokens, torch.tensor(advantages)[:, None]
        with torch.no_grad():
            olds = engine.logprobs(sequences).view(-1, options.tokens)
    else:
        rows = drawn_rows(options)
        sequences = Sequences.from_lists(rows, [[False] + [True] * (len(row) - 1) for row in rows])
        scored = options.rows * (options.tokens - 1)

    def loss(index):
        logp = engine.logprobs(sequences.take(index))
        if not options.samples:
            return -logp.sum() / scored
        ratio = (logp.view(-1, options.tokens) - olds[index]).exp()
        gain = torch.minimum(ratio * advantage[index], ratio.clamp(0.8, 1.2) * advantage[index])
        return -gain.sum() / scored

    clock = Clock()
    clock.tick()
    for step in range(options.steps + 1):
        blocks = engine.plan_micro_batches(sequences.lengths, None)
        train = TrainOptions(1e-5, clip_norm=1.0)
        engine.train_step(blocks, lambda index: MicroBatch((), lambda _: loss(index)), train, step)
        clock.tick()
    return clock.steps


def with_trl(options):
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
    import tempfile

    import torch

    torch.set_num_threads(options.threads)
    sys.path.insert(0, str(Path(__file__).parent))
    import toy
    from datasets import Dataset
    from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(pad_token_id=0, eos_token_id=1, **shape(options))).float()
    clock = Clock()

    class Ticks(TrainerCallback):
        def on_train_begin(self, *rest, **more):
            clock.tick()

        def on_step_end(self, *rest, **more):
            clock.tick()

    common = {
        "max_steps": options.steps + 1,
        "gradient_checkpointing": False,
        "bf16": options.bfloat16,
        "use_cpu": True,
        "learning_rate": 1e-5,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    codec = toy.make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        if options.samples:
            trainer = trl_grpo(options, model, codec, [Ticks()], output_dir=folder, **common)
        else:
            config = SFTConfig(output_dir=folder, per_device_train_batch_size=options.rows, max_length=None, **common)
            data = Dataset.from_list([{"input_ids": row} for row in drawn_rows(options) * (options.steps + 1)])
            trainer = SFTTrainer(model, config, train_dataset=data, processing_class=codec, callbacks=[Ticks()])
        trainer.train()
    return clock.steps


def trl_grpo(options, model, codec, callbacks, **common):
    """TRL's trainer of GRPO, with answers that are there already."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts, answers, advantages = drawn_answers(options)

    def given(texts, trainer):
        each = [prompt for prompt in prompts for _ in range(options.samples)]
        assert len(texts) == len(each)
        return {"prompt_ids": each, "completion_ids": answers, "logprobs": None}

    config = GRPOConfig(
        per_device_train_batch_size=len(answers),
        num_generations=options.samples,
        max_completion_length=options.tokens,
        temperature=1.0,
        beta=0.0,
        **common,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=[lambda **_: advantages],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [f"t{number + 3}" for number in range(options.rows)]}),
        processing_class=codec,
        callbacks=callbacks,
        rollout_func=given,
    )


if __name__ == "__main__":
    main()
