"""Steps of supervised training of a model as wide as Qwen2.5-0.5B, with its vocabulary of 151,936 tokens, on rows that
are the same for all: CPU seconds with rlgraph's head in tiles, with all logits of some tokens at a time as it was
before, and with TRL's trainer, whose loss is computed in chunks. A process for each: in turns, or all at the same time,
so that what else a machine does is the same for all.

    python benchmarks/peers/vocabulary.py --trl trlv/bin/python
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
    parser.add_argument("--tokens", type=int, default=512, help="in a row; all but the first are learned")
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
    print(f"{options.layers} layers, {options.rows} x {options.tokens} tokens, products in {dtype}")
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
    drawn = random.Random(0)
    return [[drawn.randrange(3, options.vocabulary) for _ in range(options.tokens)] for _ in range(options.rows)]


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
    rows = drawn_rows(options)
    sequences = Sequences.from_lists(rows, [[False] + [True] * (len(row) - 1) for row in rows])
    scored = options.rows * (options.tokens - 1)
    clock = Clock()
    clock.tick()
    for step in range(options.steps + 1):

        def micro(index):
            part = sequences.take(index)
            return MicroBatch((), lambda _: -engine.logprobs(part).sum() / scored)

        blocks = engine.plan_micro_batches(sequences.lengths, None)
        engine.train_step(blocks, micro, TrainOptions(1e-5, clip_norm=1.0), step)
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

    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=options.steps + 1,
            per_device_train_batch_size=options.rows,
            gradient_checkpointing=False,
            bf16=options.bfloat16,
            use_cpu=True,
            max_length=None,
            learning_rate=1e-5,
            max_grad_norm=1.0,
            weight_decay=0.0,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        data = Dataset.from_list([{"input_ids": row} for row in drawn_rows(options) * (options.steps + 1)])
        codec = toy.make_tokenizer()
        SFTTrainer(model, config, train_dataset=data, processing_class=codec, callbacks=[Ticks()]).train()
    return clock.steps


if __name__ == "__main__":
    main()
