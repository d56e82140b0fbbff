"""vLLM on a CPU, beginning a step before it has the tokens of the one before, as on a GPU.

The platform for CPUs forbids it, since nothing is gained there. What a step has sampled comes to the host when somebody
waits for it, as from a device, and holds wrong numbers until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from rlgraph.backends.engines.vllm.environment import import_vllm

WRONG = 1
"""A token, and a number of every other kind, in the place of those that have not come."""


class Device:
    """What runs on the device, step after step."""

    def __init__(self) -> None:
        self.begun = self.waited_for = 0
        """How many steps have been given to it, and up to which one somebody has waited for it."""
        self.ahead = 0
        """How many models it was given to run while nobody had waited for the step before."""

    def wait(self, step: int) -> None:
        """Wait until it has done a step."""
        self.waited_for = max(self.waited_for, step)


class _Event:
    """In the place of a device's events."""

    def __init__(self, **options: Any) -> None:
        pass

    def record(self) -> None:
        """Do nothing: a CPU has done all that came before."""

    def synchronize(self) -> None:
        """Do nothing."""


@contextmanager
def stepping_ahead() -> Iterator[Device]:
    """Have vLLM's engines that are opened meanwhile begin steps ahead, and give the device of all of them."""
    import_vllm()
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
    from vllm.v1.worker import gpu_model_runner

    device = Device()
    check = CpuPlatform.check_and_update_config

    forward = gpu_model_runner.GPUModelRunner._model_forward

    def counted(*args: Any, **more: Any) -> Any:
        device.ahead += device.begun > device.waited_for
        return forward(*args, **more)

    def allowing(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    class LateOutput(AsyncModelRunnerOutput):
        """A step's tokens, which are not there before somebody waits for them."""

        def __init__(self, model_runner_output: ModelRunnerOutput, sampled_token_ids: Tensor, **more: Any) -> None:
            self._output, self._tokens = model_runner_output, sampled_token_ids.clone()
            self._invalid: list[int] = more["invalid_req_indices"]
            device.begun += 1
            self._step = device.begun
            self.sampled_token_ids_cpu = torch.full_like(sampled_token_ids, WRONG)
            self.async_copy_ready_event = self

        def synchronize(self) -> None:
            """Wait for them."""
            device.wait(self._step)
            with torch.inference_mode():
                self.sampled_token_ids_cpu.copy_(self._tokens)

        def get_output(self) -> ModelRunnerOutput:
            """Wait for them, and return them as vLLM does."""
            self.synchronize()
            tokens = self.sampled_token_ids_cpu.tolist()
            for row in self._invalid:
                tokens[row].clear()
            self._output.sampled_token_ids = tokens
            return self._output

    class LateCopy:
        """Tensors that are there once the device has done their step, for which somebody else has waited."""

        def __init__(self, *tensors: Tensor) -> None:
            self._copies, self._step = [tensor.clone() for tensor in tensors], device.begun + 1

        def tensors(self) -> list[Tensor]:
            """Return them."""
            assert self._step <= device.waited_for, "the host waits for the step that runs ahead"
            return self._copies

    with (
        patch.object(CpuPlatform, "check_and_update_config", staticmethod(allowing)),
        patch.object(gpu_model_runner, "AsyncGPUModelRunnerOutput", LateOutput),
        patch.object(gpu_model_runner.GPUModelRunner, "_model_forward", counted),
        patch.object(torch.cuda, "Event", _Event),
        patch("rlgraph.backends.engines.vllm.sampling.HostCopy", LateCopy),
    ):
        yield device
