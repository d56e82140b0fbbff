"""What an engine that only generates says when it is asked for something else."""

from __future__ import annotations

from typing import Any, NoReturn

from rlgraph.engines.base import EngineError


class OnlyGenerates:
    """The rest of `rlgraph.engines.base.Engine`: every one of these raises EngineError."""

    def logprobs(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("score tokens")

    def entropy(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("give an entropy")

    def logprobs_and_entropy(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("score tokens")

    def values(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("give values")

    def score(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("score rows")

    def train_step(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("train")

    def plan_blocks(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("train")

    def blend(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("average weights")

    def save(self, *args: Any, **options: Any) -> NoReturn:
        raise _elsewhere("write a model")

    def copy(self) -> NoReturn:
        raise _elsewhere("copy a model")


def _elsewhere(what: str) -> EngineError:
    return EngineError(f"the engine vllm only generates and does not {what}: the engines transformers and megatron do")
