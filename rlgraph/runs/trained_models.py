"""The models that a run leaves behind, whichever process trained them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from rlgraph.conversations import OddRow, parse_content
from rlgraph.errors import NO_SPAN, Diagnostic, RunError
from rlgraph.errors.arguments import check_arguments

if TYPE_CHECKING:
    from rlgraph.backends.engines.roles import EmbeddedEngine
    from rlgraph.backends.engines.sources import ModelSpec


Save = Callable[[Path], None]
"""Writes a model to a folder that `from_pretrained` reads, while its processes live."""


class WeightsHandle(Protocol):
    """A handle on a model's weights, wherever they are."""

    def local_engine(self) -> EmbeddedEngine:
        """Return the engine that holds the model in this process."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model to a folder that `from_pretrained` reads."""
        ...

    def prepare_exit(self, saved: Path | None) -> None:
        """Prepare for the end of the run's processes; `saved` is a folder that has the weights, or None."""
        ...

    def first_diverged(self) -> str:
        """Return the name of the first tensor that has diverged; empty if none has. Called after `prepare_exit`."""
        ...


class LocalWeights:
    """Weights that are in this process."""

    def __init__(self, save: Save, engine: EmbeddedEngine) -> None:
        self._save, self._engine = save, engine

    def local_engine(self) -> EmbeddedEngine:
        return self._engine

    def save(self, folder: Path) -> None:
        self._save(folder)

    def prepare_exit(self, saved: Path | None) -> None:
        """Do nothing: the weights stay in this process."""

    def first_diverged(self) -> str:
        from rlgraph.backends.engines.tensor_files import are_sound

        return next((name for name, tensor in self._engine.tensors().items() if not are_sound(tensor)), "")


class RemoteWeights:
    """Weights in other processes; once those have ended, in a folder, from which they are loaded on first use."""

    def __init__(self, save: Save, spec: ModelSpec, frozen: bool) -> None:
        self._save: Save | None = save
        self._spec, self._frozen = spec, frozen
        """`spec` says where the weights came from; a frozen model's weights are still there."""
        self._engine: EmbeddedEngine | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def local_engine(self) -> EmbeddedEngine:
        if self._engine is None:
            from rlgraph.backends.engines.records import Rank
            from rlgraph.backends.enginespec.registry import embedded_engine, rank_opener

            self._engine = rank_opener(embedded_engine())(self._spec, Rank())
        assert self._engine is not None
        return self._engine

    def save(self, folder: Path) -> None:
        if self._save is not None:
            self._save(folder)
        else:
            self.local_engine().save(folder)

    def prepare_exit(self, saved: Path | None) -> None:
        if self._save is not None and not self._frozen:
            if saved is None:
                self._folder = TemporaryDirectory(prefix="rlgraph-")
                saved = Path(self._folder.name)
                self.save(saved)
            place, adapters = str(saved.resolve()), self._spec.adapters
            if adapters is None:
                self._spec = replace(self._spec, source=place)
            else:
                self._spec = replace(self._spec, adapters=replace(adapters, start=place))
        self._save = None

    def first_diverged(self) -> str:
        from rlgraph.backends.engines.tensor_files import first_diverged_tensor

        return "" if self._folder is None else first_diverged_tensor(Path(self._folder.name))


@dataclass(frozen=True)
class TrainedModel:
    """A model as the run left it."""

    name: str
    updates: int
    """The number of optimizer steps that it took."""
    weights: WeightsHandle = field(repr=False)

    @property
    def engine(self) -> EmbeddedEngine:
        """Return the engine that computes with the model in this process."""
        return self.weights.local_engine()

    @property
    def model(self) -> Any:
        """Return the Hugging Face model."""
        return self.engine.model

    @property
    def tokenizer(self) -> Any:
        """Return the Hugging Face tokenizer."""
        return self.engine.codec.tokenizer

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder that `from_pretrained` reads."""
        check_arguments(folder=folder)
        self.weights.save(Path(folder))

    def answer(
        self, prompts: Sequence[Any], *, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> list[str]:
        """Return one answer per prompt (a text, or a list of messages); at temperature 0 decoding is greedy.

        Raise UsageMistake for one prompt in place of several, or one that is neither; RunError for a prompt that the
        model cannot read, or that has no room for the answer.
        """
        check_arguments(prompts=prompts, max_tokens=max_tokens, temperature=temperature, seed=seed)
        import numpy as np
        import torch

        from rlgraph.backends.engines.errors import EngineError
        from rlgraph.backends.engines.records import Sampling
        from rlgraph.backends.engines.sequences import Sequences

        codec, longest = self.engine.codec, self.engine.max_row_tokens
        keys = np.random.default_rng(seed).integers(0, 2**63, len(prompts), dtype=np.uint64)
        try:
            asked = [codec.encode_prompt(parse_content(prompt, "prompt")) for prompt in prompts]
            if longest is not None and (most := max(map(len, asked), default=0)) + max_tokens > longest:
                message = (
                    f"a prompt has {most:,} tokens: with the {max_tokens:,} of `max_tokens` more it is longer than the"
                )
                raise _no_answer(self.name, f"{message} {longest:,} that a row may have", "E0748", "shorten it")
            sequences = Sequences.from_pairs(asked, [[] for _ in prompts])
            with torch.no_grad():
                answers = self.engine.generate(sequences, 1, Sampling(max_tokens, temperature), keys).sequences
        except OddRow as error:
            raise _no_answer(self.name, str(error), "E0732") from None
        except EngineError as error:
            raise _no_answer(self.name, str(error), getattr(error, "code", "E0731"), error.hint) from None
        ids = iter(answers.tokens[answers.scored].tolist())
        return [codec.decode([next(ids) for _ in range(count)]) for count in answers.scored_counts().tolist()]


def _no_answer(model: str, why: str, code: str, hint: str = "") -> RunError:
    return RunError(Diagnostic(code, f"`{model}` cannot answer: {why}", NO_SPAN, hint))
