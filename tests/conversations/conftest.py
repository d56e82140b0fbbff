import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The tiny programs that the tests of the backends use too.
sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def precision() -> Iterator[None]:
    """Numbers are compared to more digits than float32 has."""
    from double import in_double

    with in_double():
        yield
