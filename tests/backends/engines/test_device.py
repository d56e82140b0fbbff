"""The device of a model: what is asked for, else a GPU that is there."""

from __future__ import annotations

import pytest
import torch

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.device import choose_device, choose_visible_device


def test_a_gpu_that_is_there_is_chosen() -> None:
    assert [choose_device(None, gpus) for gpus in (0, 1, 4)] == ["cpu", "cuda:0", "cuda:0"]
    assert [choose_device(wanted, 2) for wanted in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]
    assert choose_visible_device(None) == choose_device(None, torch.cuda.device_count())


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ("cuda", 0, "there is no device `cuda`: there is cpu"),
        ("cuda:2", 2, "there is no device `cuda:2`: there are cpu, cuda:0, cuda:1"),
        ("gpu", 1, "there is no device `gpu`: there are cpu, cuda:0"),
    ],
)
def test_a_device_that_is_not_there(wanted: str, gpus: int, message: str) -> None:
    with pytest.raises(EngineError) as caught:
        choose_device(wanted, gpus)
    assert str(caught.value) == message
