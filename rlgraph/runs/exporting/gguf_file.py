"""Writes a Hugging Face folder as a GGUF file, as llama.cpp and others read it.

Names and meanings of fields are those of the format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, install_command, quoted_list

if TYPE_CHECKING:
    import numpy as np

TYPES = ("f32", "f16", "q8_0")
"""The types that weights are written in; those of one dimension are always f32."""
USUAL_TYPE = "f16"
_BLOCK = 32
"""The numbers that share a scale in q8_0."""


@dataclass(frozen=True)
class Family:
    """How the models of a family are written."""

    architecture: str
    """What the format calls it."""
    turned: bool = False
    """Whether the rows of queries and keys are in pairs of neighbours, in place of halves."""
    fields: Mapping[str, Container[object]] = field(default_factory=dict)
    """What a configuration has to say, for what the format has no word for: fields with the values that will do."""


_PLAIN: Mapping[str, Container[object]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "hidden_act": ("silu",),
}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", True, _PLAIN),
    "qwen2": Family("qwen2", False, {"hidden_act": ("silu",), "use_sliding_window": (None, False)}),
    "qwen3": Family("qwen3", False, {**_PLAIN, "use_sliding_window": (None, False)}),
}
"""The families that are written, by transformers' `model_type`."""

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_ELSEWHERE = "export with `--to folder`, and convert that with llama.cpp's `convert_hf_to_gguf.py`"


def require_gguf(kind: str | None) -> str:
    """Return the type of weights to write. Raise UsageMistake if the package that writes is not installed."""
    if find_spec("gguf") is None:
        raise _unusable("the package `gguf` is not installed", install_command("gguf"))
    return kind or USUAL_TYPE


def write_gguf(folder: Path, file: Path, name: str, kind: str) -> None:
    """Write the model in a folder. Raise UsageMistake for one that cannot be written so, and OSError."""
    import gguf

    from rlgraph.backends.engines.sources import ModelSpec, load_codec

    config = json.loads((folder / "config.json").read_text("utf-8"))
    family = _family(config)
    # Not transformers' choice of a class, which may be another tokenizer than that of the folder.
    tokenizer = load_codec(ModelSpec("causal_lm", str(folder))).tokenizer
    vocabulary = _vocabulary(tokenizer, int(config["vocab_size"]))
    writer: Any = gguf.GGUFWriter(file, family.architecture)
    try:
        writer.add_name(name)
        _add_shape(writer, config, kind, gguf)
        _add_tokenizer(writer, tokenizer, vocabulary, gguf)
        _add_tensors(writer, folder, family, config, kind, gguf)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _family(config: Mapping[str, Any]) -> Family:
    kind = str(config.get("model_type", ""))
    if kind not in FAMILIES or "CausalLM" not in str(config.get("architectures", "CausalLM")):
        what = f"a model of the type `{kind}`" if kind not in FAMILIES else "a model with a head of its own"
        raise _unusable(f"{what} cannot be written as GGUF here: {quoted_list([*FAMILIES], 'and')} can", _ELSEWHERE)
    family = FAMILIES[kind]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    odd = [name for name, usual in family.fields.items() if config.get(name) not in usual]
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", None):
        odd.append("rope_scaling")
    if odd:
        raise _unusable(f"`{odd[0]}` of the configuration cannot be written as GGUF here", _ELSEWHERE)
    return family


def _add_shape(writer: Any, config: Mapping[str, Any], kind: str, gguf: Any) -> None:
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    rope = config.get("rope_parameters") or {}
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(int(config["vocab_size"]))
    files = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(gguf.LlamaFileType[files[kind]])


# The tokenizer


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    splits: str
    """What the format calls the way in which a text is cut before pairs are merged."""


_SPLITS: Mapping[str, Callable[[str], bool]] = {
    "qwen2": lambda pattern: r"\p{N}|" in pattern and r"\p{N}{1,3}" not in pattern,
    "llama-bpe": lambda pattern: r"\p{N}{1,3}" in pattern,
}
"""Ways of cutting by the regular expression of a tokenizer."""


def _vocabulary(tokenizer: Any, size: int) -> _Vocabulary:
    """Return the vocabulary of a tokenizer that merges pairs of bytes. Raise UsageMistake for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    written = json.loads(backend.to_str()) if backend is not None else {}
    model = written.get("model", {})
    splits = _way_of_cutting(written.get("pre_tokenizer") or {})
    if model.get("type") != "BPE" or model.get("byte_fallback") or splits is None:
        raise _unusable(
            "its tokenizer cannot be written as GGUF here: it is none that merges pairs of bytes", _ELSEWHERE
        )
    ids: dict[str, int] = tokenizer.get_vocab()
    special = {token: added.special for token, added in _added(tokenizer).items()}
    tokens = [f"[PAD{number}]" for number in range(max(size, len(ids)))]
    kinds = [5] * len(tokens)
    for token, number in ids.items():
        tokens[number] = token
        kinds[number] = (3 if special[token] else 4) if token in special else 1
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return _Vocabulary(tokens, kinds, merges, splits)


def _added(tokenizer: Any) -> dict[str, Any]:
    return {added.content: added for added in tokenizer.added_tokens_decoder.values()}


def _way_of_cutting(pre: Mapping[str, Any]) -> str | None:
    """Return what the format calls a way of cutting; None for one that it has no name for here."""
    steps = pre.get("pretokenizers", [pre]) if pre.get("type") == "Sequence" else [pre]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return "gpt-2" if steps[0].get("use_regex", True) else None
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = str(steps[0].get("pattern", {}).get("Regex", ""))
        return next((name for name, is_it in _SPLITS.items() if is_it(pattern)), None)
    return None


def _add_tokenizer(writer: Any, tokenizer: Any, vocabulary: _Vocabulary, gguf: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.splits)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    for name, number in (
        ("bos", tokenizer.bos_token_id),
        ("eos", tokenizer.eos_token_id),
        ("unk", tokenizer.unk_token_id),
        ("pad", tokenizer.pad_token_id),
    ):
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    begins = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(begins)
    writer.add_add_space_prefix(False)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


# The weights


def _add_tensors(writer: Any, folder: Path, family: Family, config: Mapping[str, Any], kind: str, gguf: Any) -> None:
    from safetensors import safe_open

    heads = int(config["num_attention_heads"])
    pairs = {"attn_q": heads, "attn_k": int(config.get("num_key_value_heads") or heads)}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                written = _name(name)
                if written is None or written == "output.weight" and config.get("tie_word_embeddings"):
                    if written is None:
                        raise _unusable(f"the tensor `{name}` cannot be written as GGUF here", _ELSEWHERE)
                    continue
                values = tensors.get_tensor(name).float().numpy()
                count = pairs.get(written.split(".")[-2])
                if family.turned and count is not None:
                    values = _turned(values, count)
                _add(writer, written, values, kind, gguf)


def _name(name: str) -> str | None:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    head, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{head}.{_LAYER[rest]}" if head.isdecimal() and rest in _LAYER else None


def _turned(values: np.ndarray, heads: int) -> np.ndarray:
    """Return queries or keys with the halves of each head's rows interleaved: transformers rotates halves, and the
    format neighbours."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _add(writer: Any, name: str, values: np.ndarray, kind: str, gguf: Any) -> None:
    if values.ndim < 2 or kind == "f32":
        writer.add_tensor(name, values)
    elif kind == "q8_0" and values.shape[-1] % _BLOCK == 0:
        quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    else:
        writer.add_tensor(name, values.astype("float16"))


def _unusable(message: str, hint: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0853", message, NO_SPAN, hint))
