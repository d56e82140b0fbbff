"""What several tests of choosing plans share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the prompts that their programs read."""
    made = tmp_path_factory.mktemp("placement")
    (made / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    return made
