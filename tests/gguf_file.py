"""Tiny GGUF files, as llama.cpp's converter writes them: of each family that has a way of its own to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
}
HEAD_DIM = {"llama": 16, "qwen2": 16, "qwen3": 128}
"""transformers reads no other of Qwen3."""

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(
    path: Path, family: str = "llama", *, tied: bool = True, packed: str = "", without: str = "", architecture: str = ""
) -> PreTrainedModel:
    """Write a file, and return the model whose weights are in it.

    packed: tensors whose name in GGUF has this in it are quantized (Q8_0); `without` leaves out such tensors.
    architecture: what the file calls itself in place of the family.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    tokens = _tokens()
    torch.manual_seed(0)
    shape = {name: value for name, value in SIZES.items() if name != "rope_theta"}
    config = AutoConfig.for_model(
        family,
        **shape,
        head_dim=HEAD_DIM[family],
        rope_parameters={"rope_type": "default", "rope_theta": SIZES["rope_theta"]},
        vocab_size=len(tokens),
        tie_word_embeddings=tied,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    writer = GGUFWriter(path, architecture or family)
    writer.add_name("tiny")
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_key_length(HEAD_DIM[family])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(SIZES["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        renamed = name
        for ours, theirs in _NAMES.items():
            renamed = renamed.replace(ours, theirs)
        if (tied and name == "lm_head.weight") or (without and without in renamed):
            continue
        values = tensor.numpy()
        if family == "llama" and ("attn_q." in renamed or "attn_k." in renamed):
            heads = SIZES["num_attention_heads" if "attn_q." in renamed else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if packed and packed in renamed:
            kind = GGMLQuantizationType.Q8_0
            raw = quants.quantize(values, kind)
            writer.add_tensor(renamed, raw, raw_dtype=kind)
            tensor.copy_(torch.from_numpy(quants.dequantize(raw, kind)))
        else:
            writer.add_tensor(renamed, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _tokens() -> list[str]:
    """Return the letters of bytes, as GPT-2 has them, a merge, and the tokens of ChatML."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [256 + number for number in range(256 - len(plain))]
    return [*map(chr, plain), *map(chr, others), "ab", "<|im_start|>", "<|im_end|>"]
