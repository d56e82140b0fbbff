"""Models of runs as folders that transformers loads, on a hub, and as GGUF files.

12 s of a core: most of it is transformers, which loads what was written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs_on_disk import PROGRAM, write_tiny

import rlgraph
from rlgraph.cli import run_command
from rlgraph.errors import RlgraphError
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.exporting.card import license_of
from rlgraph.runs.exporting.choice import choose_weights
from rlgraph.runs.exporting.export import ExportRequest, export_to_folder, export_to_gguf, export_to_hub
from rlgraph.runs.exporting.gguf_file import _way_of_cutting

LORA = PROGRAM.replace("algorithm tiny", "algorithm adapted").replace(
    'tokenizer=chars("abcd>")))', 'tokenizer=chars("abcd>")), lora=lora(rank=2))'
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three steps: of a model, and of adapters."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, program in (("whole", PROGRAM), ("adapted", LORA)):
            path = write_tiny(folder, program).rename(f"{name}.rlf")
            rlgraph.compile(path, {"lr": 0.1}).run(
                3, out=name, threads=1, save_every=1, keep=3, keep_best="reward:min", progress=False
            )
    return folder


@pytest.fixture(autouse=True)
def here(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(runs)
    yield tmp_path


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    """All weights of a folder, as transformers or PEFT loads them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return dict(model.state_dict())


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_last_step_a_checkpoint_and_the_best_one(
    runs: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["export", "whole", "--output", str(here / "last")]) == 0
    assert capsys.readouterr().out == f"exported actor after step 3 to {here / 'last'}\n"
    last = weights(here / "last")
    assert equal(last, weights("whole/models/actor"))
    for step in ("3", "2", "best"):
        export_to_folder(ExportRequest(Path("whole"), "actor", step, output=here / step))
    # What is written of a checkpoint is what the run itself writes.
    assert choose_weights(Path("whole"), None, "3").saved is not None
    assert equal(last, weights(here / "3")) and not equal(last, weights(here / "2"))
    # The first of the lowest.
    rewards = [json.loads(line)["reward"] for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    best = rewards.index(min(rewards)) + 1
    export_to_folder(ExportRequest(Path("whole"), "actor", str(best), output=here / "of-best"))
    assert equal(weights(here / "best"), weights(here / "of-best"))
    assert equal(weights("whole/best/actor"), weights(here / "best"))


def test_a_run_that_goes_on_has_the_weights_of_its_newest_checkpoint(here: Path) -> None:
    run = here / "run"
    shutil.copytree("whole", run)
    events = run / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    # It was ended after its third step, and goes on from the second.
    events.write_text("".join([*lines, lines[0]]))
    shutil.rmtree(run / "checkpoints/step-000000003")
    (run / "checkpoints/latest").unlink()
    exported = export_to_folder(ExportRequest(run, output=here / "out"))
    assert exported.step == 2
    export_to_folder(ExportRequest(Path("whole"), step="2", output=here / "two"))
    assert equal(weights(here / "out"), weights(here / "two"))


def test_adapters_are_exported_as_they_are_or_merged(here: Path) -> None:
    pytest.importorskip("peft")
    from peft import AutoPeftModelForCausalLM

    for step in ("last", "3"):
        export_to_folder(ExportRequest(Path("adapted"), step=step, output=here / f"adapters-{step}"))
        export_to_folder(ExportRequest(Path("adapted"), step=step, output=here / f"merged-{step}", merge=True))
    folder = here / "adapters-last"
    assert (folder / "adapter_config.json").is_file() and not (here / "merged-last/adapter_config.json").exists()
    # The base began at random: it lies beside the adapters, which name it where it is now.
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder)
    merged = adapted.merge_and_unload().state_dict()
    ours = weights(here / "merged-last")
    assert ours.keys() == merged.keys() and all(torch.allclose(ours[name], merged[name], atol=1e-6) for name in ours)
    assert equal(ours, weights(here / "merged-3"))
    base = weights(folder / "base")
    assert not all(torch.allclose(ours[name], base[name], atol=1e-6) for name in ours)
    assert "Its adapters are merged" in (here / "merged-last/README.md").read_text()
    # The best one is a folder of adapters, too.
    assert AutoPeftModelForCausalLM.from_pretrained("adapted/best/actor") is not None


def test_the_card_says_what_is_known(here: Path) -> None:
    export_to_folder(ExportRequest(Path("whole"), step="2", output=here / "my-model"))
    text = (here / "my-model/README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\ntags:\n- rlgraph\n- tiny\n---\n\n# my-model\n")
    assert "after step 2" in text and "# --set lr=0.1" in text and "| set.lr | `0.1` |" in text
    rewards = [json.loads(line)["reward"] for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert f"| reward | {rewards[0]:.4g} | {rewards[1]:.4g} |" in text
    assert 'data prompts = jsonl("prompts.jsonl", batch=2)' in text and "versions.torch" in text
    base = here / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\nlicense: mine\n")
    assert license_of(str(base)) == "apache-2.0" and license_of(str(here)) is None


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["whole", "--step", "9"],
            "E0853",
            "`whole` has no weights of step 9\nhelp: there are those of `1`, `2` and `3`",
        ),
        (["whole", "--step", "first"], "E0853", "`first` is no step\nhelp: write a number, `best` or `last`"),
        (["whole", "--model", "critic"], "E0853", "has no model `critic`\nhelp: it has `actor`"),
        (["whole", "--output", "whole"], "E0879", "`whole` is not empty\nhelp: take another one with `--output`"),
        (["whole", "--to", "hub"], "E0879", "no repository is named\nhelp: say which one: `--repo OWNER/NAME`"),
        (["none"], "E0876", "`none` is not the folder of a run"),
        (["whole", "--private"], "", "`--private` goes with `--to hub`"),
    ],
)
def test_what_cannot_be_exported(words: list[str], code: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["export", *words]) == 2
    told = capsys.readouterr().err
    assert code in told and message in told


def test_a_checkpoint_that_is_damaged_is_not_exported(here: Path) -> None:
    run = here / "run"
    shutil.copytree("whole", run)
    [file] = (run / "checkpoints/step-000000002/models/actor").glob("weights*")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(RlgraphError, match="E0827"):
        export_to_folder(ExportRequest(run, step="2", output=here / "out"))
    assert sorted(path.name for path in here.iterdir()) == ["run"]


def test_a_run_without_models_says_so(here: Path) -> None:
    run = here / "run"
    shutil.copytree("whole", run, ignore=shutil.ignore_patterns("models", "checkpoints", "best"))
    with pytest.raises(RlgraphError, match="has no trained model yet\nhelp: models are saved when the run ends"):
        export_to_folder(ExportRequest(run, output=here / "out"))
    with pytest.raises(RlgraphError, match="has no best checkpoint\nhelp: begin a run with `--keep-best METRIC`"):
        export_to_folder(ExportRequest(run, step="best", output=here / "out"))


class Hub:
    """The hub's client, which keeps what it is told."""

    endpoint = "https://hub"

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails
        self.made: dict[str, Any] = {}
        self.files: list[str] = []

    def __call__(self, **_: object) -> Hub:
        return self

    def create_repo(self, repo: str, **options: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.made = {"repo": repo, **options}

    def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.files = sorted(path.name for path in Path(folder_path).iterdir())


def test_a_model_is_sent_to_the_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    assert run_command(["export", "whole", "--to", "hub", "--repo", "me/tiny", "--private"]) == 0
    assert capsys.readouterr().out == "exported actor after step 3 to https://hub/me/tiny\n"
    assert hub.made == {"repo": "me/tiny", "private": True, "exist_ok": True}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} < {*hub.files}
    with pytest.raises(RlgraphError, match="nobody else could load them: take `--merge`"):
        export_to_hub(ExportRequest(Path("adapted"), repo="me/tiny"))


def test_a_hub_that_cannot_be_reached_or_does_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        response = SimpleNamespace(status_code=401)

    for error, message in (
        (Refused("401 Client Error\nmore"), r"does not let you write `me/tiny`: 401 Client Error\nhelp: log in"),
        (ConnectionError("no route"), r"did not take `me/tiny`: no route\nhelp: without a network: `--to folder"),
    ):
        monkeypatch.setattr("huggingface_hub.HfApi", Hub(error))
        with pytest.raises(RlgraphError, match=message):
            export_to_hub(ExportRequest(Path("whole"), repo="me/tiny"))


# GGUF


def a_run_of(family: str, here: Path) -> Path:
    """The folder of a run that has saved a small model of a family, with a tokenizer that merges bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, "he", "ll", "hell", "<end>"])}
    backend = Tokenizer(models.BPE(vocabulary, [("h", "e"), ("l", "l"), ("he", "ll")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 64}
    # transformers reads heads of this size from such a file of Qwen3, whatever stands there.
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(vocabulary),
        "head_dim": 128 if family == "qwen3" else 16,
    }
    config = AutoConfig.for_model(family, **sizes, **heads, tie_word_embeddings=family == "qwen3")
    config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, None
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    run = here / "run"
    for part in (model, tokenizer):
        part.save_pretrained(run / "models/actor")
    (run / "metrics.jsonl").write_text("")
    return run


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_is_the_model(family: str, here: Path) -> None:
    pytest.importorskip("gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = a_run_of(family, here)
    plain = AutoModelForCausalLM.from_pretrained(run / "models/actor")
    tokens = AutoTokenizer.from_pretrained(run / "models/actor")("hello, hell")["input_ids"]
    assert len(tokens) < len("hello, hell")
    wanted = plain(torch.tensor([tokens])).logits
    for kind, error in (("f32", 1e-5), ("f16", 2e-2), ("q8_0", 2e-1)):
        file = here / f"{kind}.gguf"
        exported = export_to_gguf(ExportRequest(run, output=file, type=kind))
        assert exported.where == str(file)
        read = AutoModelForCausalLM.from_pretrained(here, gguf_file=file.name, dtype=torch.float32)
        assert AutoTokenizer.from_pretrained(here, gguf_file=file.name)("hello, hell")["input_ids"] == tokens
        assert (read(torch.tensor([tokens])).logits - wanted).abs().max() < error, kind


def test_what_gguf_has_no_word_for_is_refused_with_another_way(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    # It has a tokenizer of letters.
    assert run_command(["export", "whole", "--to", "gguf", "--output", str(here / "a.gguf")]) == 2
    told = capsys.readouterr().err
    assert "E0853" in told and "its tokenizer cannot be written as GGUF here" in told
    assert "convert_hf_to_gguf.py" in told and not [*here.iterdir()]
    run = a_run_of("llama", here)
    config = run / "models/actor/config.json"
    for change, message in (
        ({"model_type": "gpt2"}, "a model of the type `gpt2` cannot be written as GGUF here: `llama`, `qwen2` and"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "`rope_scaling` of the configuration"),
        ({"attention_bias": True}, "`attention_bias` of the configuration"),
        ({"architectures": ["LlamaForTokenClassification"]}, "a model with a head of its own"),
    ):
        before = config.read_text()
        config.write_text(json.dumps({**json.loads(before), **change}))
        with pytest.raises(RlgraphError) as refused:
            export_to_gguf(ExportRequest(run, output=here / "a.gguf"))
        assert message in str(refused.value)
        config.write_text(before)


def test_ways_of_cutting_have_the_names_of_the_format() -> None:
    letters = {"type": "ByteLevel", "use_regex": True}
    assert _way_of_cutting(letters) == "gpt-2" and _way_of_cutting({**letters, "use_regex": False}) is None
    digits = {"type": "Digits", "individual_digits": True}
    assert _way_of_cutting({"type": "Sequence", "pretokenizers": [digits, letters]}) == "smollm"
    for pattern, name in ((r"\p{L}+|\p{N}| ?", "qwen2"), (r"\p{L}+|\p{N}{1,3}| ?", "llama-bpe"), (r"\w+", None)):
        split = {"type": "Split", "pattern": {"Regex": pattern}}
        assert _way_of_cutting({"type": "Sequence", "pretokenizers": [split, letters]}) == name
    assert _way_of_cutting({"type": "Metaspace"}) is None


def test_the_best_one_is_replaced_whole(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed keeps the folder, and a better step takes its place."""
    run = here / "run"
    shutil.copytree("whole", run)
    before = weights(run / "best/actor")
    disk.write_text_atomically(run / "checkpoints/latest", "step-000000003\n")
    rlgraph.compile(Path("whole.rlf"), {"lr": 0.1}).run(5, resume=run, threads=1, progress=False)
    named = (run / "checkpoints/best").read_text().strip()
    export_to_folder(ExportRequest(run, step=str(int(named.removeprefix("step-"))), output=here / "out"))
    assert equal(weights(run / "best/actor"), weights(here / "out"))
    assert equal(before, weights(run / "best/actor")) == (named == Path("whole/checkpoints/best").read_text().strip())
    assert [path.name for path in (run / "best").iterdir()] == ["actor"]
