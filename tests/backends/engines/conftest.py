import pytest
import torch

# The models are tiny: more threads would only wait for one another, above all where tests run side by side.
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def precision() -> None:
    """That of a run: what the tests of the backends change, these do not."""
