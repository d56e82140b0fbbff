"""Configurations that are found without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlgraph.catalog.models import configs as module
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config, known_config
from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape, UnsupportedModel

BILLIONS = {
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B": 1.54,
    "Qwen/Qwen2.5-3B": 3.09,
    "Qwen/Qwen2.5-7B": 7.62,
    "Qwen/Qwen2.5-14B": 14.8,
    "Qwen/Qwen2.5-32B": 32.8,
    "Qwen/Qwen2.5-72B": 72.7,
    "Qwen/Qwen2.5-Math-1.5B": 1.54,
    "Qwen/Qwen2.5-Math-7B": 7.62,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.8,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 30.5,
    "Qwen/Qwen3-235B-A22B": 235.1,
    "Qwen/Qwen3-235B-A22B-Instruct-2507": 235.1,
    "Qwen/Qwen1.5-MoE-A2.7B": 14.3,
    "Qwen/Qwen2-57B-A14B": 57.4,
    "codellama/CodeLlama-34b-hf": 33.7,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
    "google/gemma-2-2b": 2.61,
    "google/gemma-2-9b": 9.24,
    "google/gemma-2-27b": 27.2,
    "google/gemma-3-270m": 0.268,
    "google/gemma-3-1b-pt": 1.0,
    "meta-llama/Llama-2-7b-hf": 6.74,
    "meta-llama/Llama-2-13b-hf": 13.02,
    "meta-llama/Llama-2-70b-hf": 68.98,
    "meta-llama/Meta-Llama-3-8B": 8.03,
    "meta-llama/Meta-Llama-3-70B": 70.55,
    "meta-llama/Llama-3.1-8B": 8.03,
    "meta-llama/Llama-3.1-70B": 70.55,
    "meta-llama/Llama-3.1-405B": 405.85,
    "meta-llama/Llama-3.2-1B": 1.24,
    "meta-llama/Llama-3.2-3B": 3.21,
    "microsoft/phi-4": 14.7,
    "microsoft/Phi-4-mini-instruct": 3.84,
    "microsoft/Phi-3-mini-4k-instruct": 3.82,
    "mistralai/Mistral-7B-v0.1": 7.24,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24,
    "mistralai/Mistral-7B-v0.3": 7.25,
    "mistralai/Mistral-Nemo-Base-2407": 12.2,
    "mistralai/Mistral-Small-24B-Base-2501": 23.6,
    "mistralai/Mistral-Large-Instruct-2407": 123.0,
    "mistralai/Mixtral-8x7B-v0.1": 46.7,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "mistralai/Mixtral-8x22B-v0.1": 140.6,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140.6,
}
"""Parameters, as published on the models' pages."""

REWARD_BILLIONS = {"Skywork/Skywork-Reward-V2-Qwen3-8B": 7.57, "Skywork/Skywork-Reward-V2-Llama-3.1-8B": 7.50}

NAMES = json.loads(Path(module.__file__).with_name("known.json").read_text("utf-8"))


def shape(name: str) -> Shape:
    found = known_config(name)
    assert found is not None
    return shape_of(found)


@pytest.mark.parametrize("name", BILLIONS)
def test_a_known_model_has_the_published_number_of_parameters(name: str) -> None:
    assert parameter_count(shape(name)) / 1e9 == pytest.approx(BILLIONS[name], rel=0.005)


@pytest.mark.parametrize("name", REWARD_BILLIONS)
def test_a_known_reward_model_too(name: str) -> None:
    assert parameter_count(shape(name), "reward_lm") / 1e9 == pytest.approx(REWARD_BILLIONS[name], rel=0.005)


def test_every_configuration_is_compared_and_every_other_name_leads_to_one() -> None:
    for name, found in NAMES.items():
        assert (found if isinstance(found, str) else name) in BILLIONS
        assert known_config(name) == (NAMES[found] if isinstance(found, str) else found)


def test_a_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    folder.mkdir(parents=True)
    assert find_config("Qwen/Qwen3-8B") is None
    (folder / "config.json").write_text('{"model_type": "mine"}')
    assert find_config("Qwen/Qwen3-8B") == {"model_type": "mine"}


def test_then_what_the_client_of_the_hub_has_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "models--some--model"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc")
    (stored / "snapshots" / "abc").mkdir(parents=True)
    (stored / "snapshots" / "abc" / "config.json").write_text('{"model_type": "stored"}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_config("some/model") == {"model_type": "stored"}


@pytest.mark.parametrize("source", ["some/unheard-of", "../nowhere/at/all", "a b"])
def test_what_is_nowhere_is_none(source: str) -> None:
    assert find_config(source) is None


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsupportedModel, match="config.json"):
        find_config(str(tmp_path))
