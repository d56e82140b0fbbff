"""The models that a run leaves, wherever they were trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rlgraph.backends.engines.base import Embedded
    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.runs.backends import Backend


class Weights(Protocol):
    """Where a model's weights are."""

    def engine(self) -> Embedded:
        """The model in this process."""
        ...

    def save(self, folder: Path) -> None:
        """Writes a folder that `from_pretrained` reads."""
        ...

    def leave(self, saved: Path | None) -> None:
        """The run's processes will end; `saved` is a folder that has the weights."""
        ...


class Here:
    """In this process."""

    def __init__(self, backend: Backend, name: str, engine: Embedded) -> None:
        self._backend, self._name, self._engine = backend, name, engine

    def engine(self) -> Embedded:
        return self._engine

    def save(self, folder: Path) -> None:
        self._backend.save(self._name, folder)

    def leave(self, saved: Path | None) -> None:
        """They stay."""


class Elsewhere:
    """In other processes; once those have ended, in a folder, from which they are loaded when they are asked for."""

    def __init__(self, backend: Backend, name: str, spec: ModelSpec, frozen: bool) -> None:
        self._backend: Backend | None = backend
        self._name, self._spec, self._frozen = name, spec, frozen
        """`spec` is where the weights came from; those of a frozen model are still there."""
        self._engine: Embedded | None = None
        self._kept: TemporaryDirectory[str] | None = None

    def engine(self) -> Embedded:
        if self._engine is None:
            from rlgraph.backends.engines.base import Rank
            from rlgraph.backends.enginespec.registry import embedded, opener

            self._engine = opener(embedded())(self._spec, Rank())
        assert self._engine is not None
        return self._engine

    def save(self, folder: Path) -> None:
        if self._backend is not None:
            self._backend.save(self._name, folder)
        else:
            self.engine().save(folder)

    def leave(self, saved: Path | None) -> None:
        if not self._frozen:
            if saved is None:
                self._kept = TemporaryDirectory(prefix="rlgraph-")
                saved = Path(self._kept.name)
                self.save(saved)
            place, adapters = str(saved.resolve()), self._spec.adapters
            if adapters is None:
                self._spec = replace(self._spec, source=place)
            else:
                self._spec = replace(self._spec, adapters=replace(adapters, start=place))
        self._backend = None


@dataclass(frozen=True)
class TrainedModel:
    """A model as the run left it."""

    name: str
    updates: int
    """Optimizer steps that it took."""
    weights: Weights = field(repr=False)

    @property
    def engine(self) -> Embedded:
        """The engine that computes with it in this process."""
        return self.weights.engine()

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        return self.engine.model

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.engine.codec.tokenizer

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `from_pretrained` reads."""
        self.weights.save(Path(folder))

    def answer(
        self, prompts: Sequence[Any], *, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> list[str]:
        """An answer to each prompt (a text, or a list of messages); the likeliest one at temperature 0."""
        import numpy as np
        import torch

        from rlgraph.backends.engines.base import Sampling
        from rlgraph.backends.engines.sequences import Sequences

        codec = self.engine.codec
        asked = Sequences.from_pairs([codec.encode_prompt(prompt) for prompt in prompts], [[] for _ in prompts])
        keys = np.random.default_rng(seed).integers(0, 2**63, len(prompts), dtype=np.uint64)
        with torch.no_grad():
            made = self.engine.generate(asked, 1, Sampling(max_tokens, temperature), keys).sequences
        ids = iter(made.tokens[made.scored].tolist())
        return [codec.decode([next(ids) for _ in range(count)]) for count in made.counts().tolist()]
