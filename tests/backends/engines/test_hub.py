"""Models of the hub where the hub does not answer: told at once, or read from what is stored here."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from rlgraph import hub
from rlgraph.backends.engines.base import EngineError, HubError
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load, load_codec
from rlgraph.backends.engines.tokenizers import CharTokenizer
from rlgraph.catalog.models import hub_availability
from rlgraph.catalog.models.configs import find_snapshot

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
NAME = "some/model"


class Silent:
    """A client that nobody answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def head(self, url: str, **options: Any) -> None:
        assert options["timeout"] == hub.SECONDS
        self.asked.append(url)
        raise OSError("Name or service not known")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"`{name}` of a hub that does not answer")


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Silent:
    found = Silent()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "stored"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: found)
    monkeypatch.setattr("huggingface_hub.utils._http.get_session", lambda: found)
    return found


def test_a_hub_that_does_not_answer_is_asked_once(silent: Silent, tmp_path: Path) -> None:
    with pytest.raises(HubError) as refused:
        load(ModelSpec("causal_lm", NAME))
    assert str(refused.value) == (
        f"cannot load the tokenizer '{NAME}': it is no folder, it is not stored in '{tmp_path / 'stored'}', and the hub "
        f"{constants.ENDPOINT} does not answer: Name or service not known"
    )
    assert silent.asked == [f"{constants.ENDPOINT}/{NAME}/resolve/main/config.json"]
    again = pickle.loads(pickle.dumps(refused.value))
    for name in hub_availability.VARIABLES:
        assert f"`{name}`" in again.hint
    assert f"`hf download {NAME}`" in again.hint


def test_no_hub_is_asked_where_that_is_said(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="no hub is asked"):
        load_codec(ModelSpec("causal_lm", NAME))
    assert silent.asked == []


def test_a_folder_that_is_not_there_is_no_matter_for_the_hub(silent: Silent) -> None:
    with pytest.raises(EngineError, match="'no/such/folder': there is no such folder"):
        load_codec(ModelSpec("causal_lm", "no/such/folder"))
    assert silent.asked == []


def test_a_model_that_is_stored_is_loaded_without_the_hub(silent: Silent, tmp_path: Path) -> None:
    made = load(ModelSpec("causal_lm", RandomWeights("qwen2", SHAPE, CharTokenizer("abcd>"))))
    place = tmp_path / "stored" / f"models--{NAME.replace('/', '--')}"
    made.model.save_pretrained(place / "snapshots" / "a1b2c3")
    made.codec.save(place / "snapshots" / "a1b2c3")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("a1b2c3")
    assert find_snapshot(NAME) == place / "snapshots" / "a1b2c3"
    found = load(ModelSpec("causal_lm", NAME)).model.state_dict()
    assert all(torch.equal(each, found[name]) for name, each in made.model.state_dict().items())
    assert set(silent.asked) == {f"{constants.ENDPOINT}/{NAME}/resolve/main/config.json"}
    shutil.rmtree(place)
    assert find_snapshot(NAME) is None


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        (401, "GatedRepo", "to those alone whom its owner has given access", "ask for access on"),
        (403, "GatedRepo", "to those alone whom its owner has given access", "`HF_TOKEN`"),
        (401, "RepoNotFound", "has no model of that name, or a private one", "look at how it is written"),
        (429, "", "does not work now: it answers 429", "`hf download some/model`"),
        (503, "", "does not work now: it answers 503", "`HF_ENDPOINT`"),
    ],
)
def test_what_the_hub_says_is_told_at_once(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, status: int, code: str, message: str, hint: str
) -> None:
    """One request, after which no library asks again, and waits in between."""
    answer = SimpleNamespace(status_code=status, headers={"X-Error-Code": code} if code else {})
    monkeypatch.setattr(silent, "head", lambda url, **options: silent.asked.append(url) or answer, raising=False)
    with pytest.raises(HubError, match=message) as refused:
        load_codec(ModelSpec("causal_lm", NAME))
    assert hint in refused.value.hint and len(silent.asked) == 1


def test_a_model_that_the_hub_gives_is_read_by_its_name(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(status_code=307, headers={})
    monkeypatch.setattr(silent, "head", lambda url, **options: answer, raising=False)
    assert hub_availability.readable_source(NAME) == NAME


def test_the_documents_say_what_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "why" / "models.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in hub_availability.VARIABLES)
