"""Low-rank adapters of a Hugging Face model in memory, and their files.

A linear layer that has one keeps its weight, and adds to its output what its two small layers, `lora_A` and `lora_B`,
compute. In narrow models the small layers are float32, as PEFT has them, and the sum is rounded once
(`add_in_product`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlgraph.backends.engines.errors import EngineError
from rlgraph.catalog.models.adapters import (
    ALL,
    CONFIG,
    PREFIX,
    WEIGHTS,
    Adapters,
    adapter_matrix_names,
    adapter_target_names,
    file_and_model_tensor_names,
)
from rlgraph.catalog.models.families import ModelKind

_HEADS = ("score", "classifier")
"""What the head of a value or reward model may be called: it is trained beside the adapters."""
_TASKS = {"causal_lm": "CAUSAL_LM", "value_lm": "TOKEN_CLS", "reward_lm": "SEQ_CLS"}


def attach_adapters(model: PreTrainedModel, adapters: Adapters, kind: ModelKind) -> None:
    """Give a model adapters, which are all that is trained from then on, beside the head of a value or reward model.
    Raises EngineError where they do not fit it."""
    linear = adaptable_layers(model)
    for target in adapters.unmatched_targets(linear):
        raise EngineError(_unknown_target(model, target, list(linear)))
    model.requires_grad_(False)
    for name in adapters.adapted_layers(linear):
        layer = linear[name]
        outputs, inputs = _sizes(layer)
        wide = adapter_dtype(layer.weight.dtype)
        options = {"dtype": wide, "device": layer.weight.device}
        layer.lora_A = nn.Linear(inputs, adapters.rank, bias=False, **options)
        layer.lora_B = nn.Linear(adapters.rank, outputs, bias=False, **options)
        layer.lora_scale = adapters.scale
        layer.__class__ = _WITH_ADAPTER.get(type(layer), type(layer))
        first, _ = adapter_matrix_names(name)
        with torch.no_grad():
            layer.lora_A.weight.copy_(initial_lora_a(first, (adapters.rank, inputs), adapters.seed))
            layer.lora_B.weight.zero_()
        # The hook runs before ranks that split the layer add up its outputs.
        layer.register_forward_hook(_add_adapter, prepend=True)
    for name in _HEADS if kind != "causal_lm" else ():
        if isinstance(head := getattr(model, name, None), nn.Module):
            head.requires_grad_(True)
    if adapters.start:
        _load_into(trained_parameters(model), adapters.start)


def share_base(model: PreTrainedModel, kind: ModelKind) -> PreTrainedModel:
    """Return the same base once more, in the same memory, and without adapters; it has a head of its own, which may be
    trained beside them."""
    heads = {id(parameter) for name in _HEADS for parameter in _parameters_of(model, name) if kind != "causal_lm"}
    base = [
        parameter for name, parameter in model.named_parameters() if not is_adapter(name) and id(parameter) not in heads
    ]
    copied = copy.deepcopy(model, {id(parameter): nn.Parameter(parameter.detach()) for parameter in base})
    for module in copied.modules():
        if hasattr(module, "lora_A"):
            del module.lora_A, module.lora_B, module.lora_scale
            for key in [key for key, hook in module._forward_hooks.items() if hook is _add_adapter]:
                del module._forward_hooks[key]
            module.__class__ = next(
                (plain for plain, own in _WITH_ADAPTER.items() if own is type(module)), type(module)
            )
    return copied


def copy_with_shared_base(model: PreTrainedModel) -> PreTrainedModel:
    """Return the same model with adapters of its own on the same base; a model without adapters gets weights of its
    own."""
    return copy.deepcopy(
        model, {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    )


def trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that training changes: of a model with adapters only these, else all."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def is_adapter(name: str) -> bool:
    """Return whether a parameter is one of an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def initial_lora_a(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return A as it is at first: uniform, as torch has a linear layer's weight (Kaiming, a = sqrt 5). It is the same
    in every process; no two matrices have the same."""
    generator = torch.Generator().manual_seed(crc32(f"{seed} {name}".encode()))
    bound = shape[1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def adapter_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the adapters of weights of this dtype."""
    return torch.promote_types(dtype, torch.float32)


def adaptable_layers(model: PreTrainedModel) -> dict[str, Any]:
    """Return the layers that can have an adapter, by name: all linear ones but the head."""
    output = model.get_output_embeddings()
    heads = {id(module) for module in (output, *(getattr(model, name, None) for name in _HEADS)) if module is not None}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and id(module) not in heads and not _is_inside(name)
    }


def _is_inside(name: str) -> bool:
    return name.endswith((".lora_A", ".lora_B"))


def _add_adapter(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
    """The forward hook of a layer that has an adapter: it adds the adapter's product to an output without it."""
    if getattr(layer, "adds_adapter", False):
        return None
    small = _product(layer.lora_B, _product(layer.lora_A, inputs[0]))
    adapted: Tensor = output + small * layer.lora_scale
    return adapted


def add_in_product(addend: Tensor, x: Tensor, weight: Tensor, scale: float = 1.0) -> Tensor:
    """Return x W' + scale * addend, added up as wide as the product is and rounded once.

    The output of a bfloat16 matrix has 8 binary places. What an update of a usual size adds to one that is rounded
    already is mostly less than half of a place, and always lost; where both are rounded together it is there in the
    mean. x: [..., inputs]. weight: [outputs, inputs]. addend: [..., outputs].
    """
    rows = x.reshape(-1, x.shape[-1])
    total = torch.addmm(addend.reshape(len(rows), -1), rows, weight.t(), beta=scale)
    return total.view(addend.shape)


def product_with_adapter(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the output of a layer that has an adapter. weight: [outputs, inputs], in the dtype of the product."""
    small = _product(layer.lora_B, _product(layer.lora_A, x))
    total = add_in_product(small, x, weight, layer.lora_scale)
    return total if bias is None else total + bias


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter."""

    adds_adapter = True

    def forward(self, input: Tensor) -> Tensor:
        return product_with_adapter(self, input, self.weight, self.bias)


class AdaptedConv1D(Conv1D):
    """The same with the weight [inputs, outputs], as GPT-2 has it."""

    adds_adapter = True

    def forward(self, x: Tensor) -> Tensor:
        return product_with_adapter(self, x, self.weight.t(), self.bias)


_WITH_ADAPTER: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: AdaptedLinear, Conv1D: AdaptedConv1D}
"""The plain linear layers, and what they are where they have an adapter."""


def _product(small: Any, x: Tensor) -> Tensor:
    """Apply a small layer in the dtype of its input, as under torch's autocast: a wide copy of the input would stay for
    the gradient."""
    wide = small.weight.dtype == x.dtype
    product: Tensor = small(x) if wide else nn.functional.linear(x, small.weight.to(x.dtype))
    return product


def _sizes(layer: Any) -> tuple[int, int]:
    """Return the numbers of outputs and inputs."""
    if isinstance(layer, Conv1D):
        return layer.weight.shape[1], layer.weight.shape[0]
    # A layer that ranks have split keeps the sizes of the whole.
    return layer.out_features, layer.in_features


def _parameters_of(model: nn.Module, name: str) -> list[nn.Parameter]:
    head = getattr(model, name, None)
    return list(head.parameters()) if isinstance(head, nn.Module) else []


def _unknown_target(model: nn.Module, target: str, linear: list[str]) -> str:
    endings = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    return f"no linear layer of {type(model).__name__} is called `{target}`: there are {endings}, or all: `{ALL}`"


# Files


def save(
    model: PreTrainedModel,
    tensors: Mapping[str, Tensor],
    adapters: Adapters,
    kind: ModelKind,
    base: str,
    folder: str | Path,
) -> None:
    """Write the adapters of a model, which are these tensors, as PEFT does. model: its weights are not read. base: the
    folder or hub name of the model that they are for."""
    linear, path = adaptable_layers(model), Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    chosen = adapters.adapted_layers(linear)
    stored = {f"{PREFIX}{name}": tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    save_file(stored, path / WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": _TASKS[kind],
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": adapter_target_names(chosen, linear),
        "fan_in_fan_out": any(isinstance(linear[name], Conv1D) for name in chosen),
        "modules_to_save": [name for name in _HEADS if kind != "causal_lm" and _parameters_of(model, name)] or None,
        "inference_mode": True,
    }
    (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def base_location(source: object, folder: Path) -> tuple[str, bool]:
    """Return where the base of adapters that are saved in a folder is, and whether somebody has to write it there: a
    base that has no folder or name is put beside them."""
    if isinstance(source, str):
        return str(Path(source).resolve()) if Path(source).is_dir() else source, False
    return str(folder.resolve() / "base"), True


def load_adapter(folder: str) -> dict[str, Tensor]:
    """Return the tensors of an adapter's folder, by the model's names. Raises EngineError."""
    file = Path(folder) / WEIGHTS
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the adapter in {folder!r}: {error}") from error
    return {name: tensors[key] for key, name in file_and_model_tensor_names(tensors)}


def check_start(shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor], folder: str) -> None:
    """Raise EngineError where the tensors of an adapter's folder are not of these names and shapes."""
    for name in shapes.keys() ^ tensors.keys():
        where = "the folder" if name in tensors else "the model"
        raise EngineError(f"the adapter in {folder!r} is another model's: only {where} has {name}")
    for name, shape in shapes.items():
        if tuple(shape) != tuple(tensors[name].shape):
            both = " and ".join(" x ".join(map(str, side)) for side in (shape, tensors[name].shape))
            raise EngineError(f"the adapter in {folder!r} is another model's: {name} is {both} there")


@torch.no_grad()
def _load_into(parameters: Mapping[str, Tensor], folder: str) -> None:
    tensors = load_adapter(folder)
    check_start({name: parameter.shape for name, parameter in parameters.items()}, tensors, folder)
    for name, tensor in parameters.items():
        tensor.copy_(tensors[name])
