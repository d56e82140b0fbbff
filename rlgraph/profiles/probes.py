"""Small programs that run random models of known shapes on rows of known lengths, to measure how long that takes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.compile import check_program, compile_program
from rlgraph.passes.compilation.read_program import open_program
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.lengths import Lengths

LETTERS = "abcdefgh"
LONGEST = 1024

REWARDS = '''"""What the profile asks of a user's function: nothing to speak of."""


def score(prompts, completions, completion_ids, **columns):
    return [sum(ids) % 7 / 6 for ids in completion_ids]
'''


@dataclass(frozen=True, slots=True)
class ProbeModel:
    """A random model of a known shape."""

    hidden: int
    layers: int
    vocab: int
    heads: int = 2
    ffn: int = 2
    """The width of the feed-forward network as a multiple of the hidden width."""

    @property
    def declaration(self) -> str:
        """Return the model's declaration in the language."""
        return (
            f'random("qwen2", seed=0, hidden_size={self.hidden}, intermediate_size={self.ffn * self.hidden}, '
            f"num_hidden_layers={self.layers}, num_attention_heads={self.heads}, num_key_value_heads={self.heads}, "
            f'max_position_embeddings={LONGEST}, tokenizer=chars("{LETTERS}"), vocab_size={self.vocab})'
        )


@dataclass(frozen=True, slots=True)
class ProbeWork:
    """The work on rows of one length: they are sampled, read, and trained on."""

    samples: int
    tokens: int
    parts: int = 1
    """The number of optimizer steps, one for each slice of the rows; 0: they are only sampled."""


@dataclass(frozen=True)
class Probe:
    """A program in which every model does all points."""

    sizes: tuple[ProbeModel, ...]
    points: tuple[ProbeWork, ...]
    prompts: int = 16
    dtype: str = "float32"

    @property
    def program_text(self) -> str:
        """Return the program."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the program."""
        yield "algorithm probe"
        for number, size in enumerate(self.sizes):
            yield f'model m{number} = causal_lm({size.declaration}, dtype="{self.dtype}")'
            yield f"model r{number} = frozen(m{number})"
        yield f'data prompts = jsonl("prompts.jsonl", batch={self.prompts})'
        yield 'func score = python("rewards.py:score")'
        yield "step:"
        for number, _ in enumerate(self.sizes):
            for place, point in enumerate(self.points):
                yield from (
                    f"    {line}" for line in self._point(f"m{number}", f"r{number}", f"{number}_{place}", point)
                )

    def _point(self, model: str, frozen: str, place: str, point: ProbeWork) -> Iterator[str]:
        """Yield the lines of a point of one model."""
        yield (
            f"g{place} = {model}.generate(prompts, n={point.samples}, max_tokens={point.tokens}, "
            f"min_tokens={point.tokens})"
        )
        if not point.parts:
            # Without a use of its rows the sampling would be removed.
            yield f"report l{place} = mean(g{place}.length)"
            return
        yield f"p{place} = {frozen}.logprobs(g{place})"
        yield f"s{place} = score(g{place})"
        yield f"a{place} = (s{place} - mean(s{place}, by=prompts)) / (std(s{place}, by=prompts) + 0.001)"
        yield f"minibatch prompts(parts={point.parts}):"
        yield f"    train {model}(lr=1e-6, clip_norm=1.0):"
        yield f"        q{place} = exp({model}.logprobs(g{place}) - p{place})"
        yield f"        minimize mean(-min(q{place} * a{place}, clip(q{place}, 0.8, 1.2) * a{place}))"

    def compile_program(self, folder: Path, schedule: str = "") -> Compilation:
        """Compile the program with its data in a folder. schedule: a schedule without its first line."""
        rows = [{"prompt": text} for text in self.prompt_texts()]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "rewards.py").write_text(REWARDS)
        (folder / "probe.rlf").write_text(self.program_text)
        opened = open_program(folder / "probe.rlf")
        return compile_program(
            opened, {}, check_program(opened, {}, f"schedule probe\n{schedule}" if schedule else None)
        )

    def prompt_texts(self) -> list[str]:
        """Return the prompts, of 8 to 16 tokens each; every step reads all of them."""
        rng = random.Random(0)
        return ["".join(rng.choice(LETTERS) for _ in range(8 + number * 5 % 9)) for number in range(self.prompts)]

    def batches_at(self, point: ProbeWork) -> tuple[Batch, Batch]:
        """Return the rows that are sampled and read, and those of one optimizer step."""
        prompt, response = (
            Lengths.from_lengths(len(text) for text in self.prompt_texts()),
            Lengths((float(point.tokens),)),
        )
        rows = float(self.prompts * point.samples)
        return Batch(rows, prompt, response, point.samples), Batch(rows / max(1, point.parts), prompt, response)

    def training_order(self) -> Sequence[tuple[int, ProbeWork]]:
        """Return the model and the point of each optimizer step, in the order in which a model takes its own."""
        return [
            (number, point) for number, _ in enumerate(self.sizes) for point in self.points for _ in range(point.parts)
        ]
