"""Low-rank adapters: which matrices of a model have one, and how adapters are saved.

A frozen matrix W computes as W + alpha / rank * B A, and only A and B are trained (LoRA, Hu et al., arXiv 2106.09685).
Names, initialization (A uniform like a linear layer's weight, B zero) and files are those of PEFT.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.files import read_bytes
from rlgraph.ir.graph import ConstructorCall, Model

LARGEST_BYTES = 16 << 20
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base_model_name_or_path"
"""The configuration field that names an adapter's base model."""
PREFIX = "base_model.model."
"""The prefix of every name in a file of adapter weights."""

ALL = "all-linear"
"""The target that stands for every linear layer but the output layer."""


class UnsupportedAdapter(ValueError):
    """Raised for a saved adapter that is not supported; the message names the field."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of one model."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = (ALL,)
    """Names of modules, of which the last parts suffice, or `ALL`."""
    seed: int = 0
    """The seed of A."""
    start: str | None = None
    """A folder with the initial adapters; None: B is zero, and the model begins as its base."""

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank

    def adapted_layers(self, linear: Iterable[str]) -> list[str]:
        """Return those of a model's linear layers, by name, that have an adapter."""
        return [
            name for name in linear if self.targets == (ALL,) or any(_matches(name, target) for target in self.targets)
        ]

    def unmatched_targets(self, linear: Iterable[str]) -> list[str]:
        """Return the targets that match no linear layer of a model."""
        names = list(linear)
        return [
            target for target in self.targets if target != ALL and not any(_matches(name, target) for name in names)
        ]


def _matches(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def adapter_matrix_names(module: str) -> tuple[str, str]:
    """Return the names of a module's A, [rank, inputs], and B, [outputs, rank]."""
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def adapter_target_names(chosen: Iterable[str], linear: Iterable[str]) -> list[str]:
    """Return how files name the layers with adapters: by their last parts where these match no other layer."""
    chosen, linear = list(chosen), list(linear)
    last = sorted({name.rpartition(".")[2] for name in chosen})
    matched = {name for name in linear if name.rpartition(".")[2] in last}
    return last if matched == set(chosen) else sorted(chosen)


def adapters_of(model: Model) -> Adapters | None:
    """Return the adapters that a program gives to a model that is no copy; None if it gives none."""
    lora = dict(model.options).get("lora")
    if not isinstance(lora, ConstructorCall):
        return None
    rank, wanted = int(lora.option("rank")), lora.option("targets")
    alpha = lora.option("alpha")
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    return Adapters(rank, float(rank if alpha is None else alpha), names, int(lora.option("seed")))


# Folders


def find_adapter(source: str) -> tuple[str, Adapters] | None:
    """Return the base (a folder or a hub name) and the adapters of a folder that holds an adapter; None for any other
    source. Raises UnsupportedAdapter."""
    folder = Path(source)
    if not (folder / CONFIG).is_file():
        return None
    try:
        config = json.loads(read_bytes(folder / CONFIG, LARGEST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedAdapter(f"cannot read {folder / CONFIG}: {error}") from error
    base = config.get(BASE) if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise UnsupportedAdapter(f"{folder / CONFIG} does not say which model it is for (`{BASE}`)")
    for field, usual in _PLAIN.items():
        if config.get(field) not in usual:
            raise UnsupportedAdapter(
                f"`{field}` in {folder / CONFIG} is {config[field]!r}, which is not known here: merge the adapter into"
                " its base with PEFT (`merge_and_unload`), and begin with that"
            )
    rank, alpha, modules = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, (int, float)) or not modules:
        raise UnsupportedAdapter(f"{folder / CONFIG} lacks `r`, `lora_alpha` or `target_modules`")
    targets = (ALL,) if modules == ALL else tuple(sorted(modules)) if isinstance(modules, list) else None
    if targets is None:
        raise UnsupportedAdapter(f"`target_modules` in {folder / CONFIG} is a pattern: write a list of names")
    return _base_path(folder, base), Adapters(rank, float(alpha), targets, start=str(folder))


_PLAIN: Mapping[str, Container[Any]] = {
    "peft_type": ("LORA",),
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "bias": (None, "none"),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layers_to_transform": (None, []),
    "exclude_modules": (None, []),
    "target_parameters": (None, []),
    "modules_to_save": (None, [], ["score"], ["classifier", "score"], ["score", "classifier"]),
    "trainable_token_indices": (None, []),
    "lora_bias": (None, False),
}
"""Fields that change what an adapter computes, with the values that mean a plain one. The head of a value or reward
model is trained in addition to the adapter and saved with it."""


def _base_path(folder: Path, base: str) -> str:
    """Return the path of a base: a folder that was moved together with its adapter is next to it."""
    sibling = folder / Path(base).name
    return str(sibling) if not Path(base).is_dir() and sibling.is_dir() else base


def update_adapter_base_path(folder: Path, final: Path) -> None:
    """Prepare a folder for its final name, in the same place: an adapter whose base is inside the folder has to refer
    to it by that name, since PEFT looks nowhere else. Raises OSError."""
    file = folder / CONFIG
    if not file.is_file():
        return
    config = json.loads(file.read_text("utf-8"))
    base = Path(str(config.get(BASE)))
    # The process that wrote it may see the folder at another path than this one.
    if base.parent.name == folder.name:
        config[BASE] = str(base.parent.with_name(final.name) / base.name)
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def file_and_model_tensor_names(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return the names in a file of adapter weights, each with its name in the model."""
    for name in files:
        yield name, name.removeprefix(PREFIX)
