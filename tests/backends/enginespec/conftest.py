import pytest


@pytest.fixture(scope="module", autouse=True)
def precision() -> None:
    """That of a run: what the tests of the backends change, these do not."""
