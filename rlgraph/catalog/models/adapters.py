"""Low-rank adapters: a frozen matrix W computes as W + alpha / rank * B A, and only A and B are trained (LoRA, Hu et
al., arXiv 2106.09685). Which matrices have one, what that adds to a model, and the files that say so.

The names, the start (A uniform as a linear layer's weight, B zero) and the files are those of PEFT.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.files import read_bytes
from rlgraph.ir.graph import Model, Record

LARGEST_BYTES = 16 << 20
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base_model_name_or_path"
"""The field that says what an adapter is for."""
PREFIX = "base_model.model."
"""Of every name in a file of weights."""

ALL = "all-linear"
"""Every linear layer but the one that gives the output."""


class UnsupportedAdapter(ValueError):
    """A saved adapter that is not known here; the message names the field."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Those of one model."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = (ALL,)
    """Names of modules: the last part of them, or several, or all."""
    seed: int = 0
    """Of A."""
    start: str | None = None
    """A folder with those that it begins with; None: B is zero, and the model begins as its base."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def chosen(self, linear: Iterable[str]) -> list[str]:
        """Of the linear layers of a model, by name, those that have one."""
        return [name for name in linear if self.targets == (ALL,) or any(_meant(name, each) for each in self.targets)]

    def unknown(self, linear: Iterable[str]) -> list[str]:
        """The targets that are no linear layer of a model."""
        names = list(linear)
        return [each for each in self.targets if each != ALL and not any(_meant(name, each) for name in names)]


def _meant(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def pair(module: str) -> tuple[str, str]:
    """The names of A, [rank, inputs], and B, [outputs, rank]."""
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def targets(chosen: Iterable[str], linear: Iterable[str]) -> list[str]:
    """How files name the layers that have one: by their last parts where these mean no other layer."""
    chosen, linear = list(chosen), list(linear)
    last = sorted({name.rpartition(".")[2] for name in chosen})
    meant = {name for name in linear if name.rpartition(".")[2] in last}
    return last if meant == set(chosen) else sorted(chosen)


def adapters_of(model: Model) -> Adapters | None:
    """Those that a program gives to a model, which is no copy; None: it gives none."""
    found = dict(model.options).get("lora")
    if not isinstance(found, Record):
        return None
    rank, wanted = int(found.option("rank")), found.option("targets")
    alpha = found.option("alpha")
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    return Adapters(rank, float(rank if alpha is None else alpha), names, int(found.option("seed")))


# Folders


def find_adapter(source: str) -> tuple[str, Adapters] | None:
    """Of a folder that holds an adapter its base, a folder or a hub name, and what it is; None for any other source.
    Raises UnsupportedAdapter."""
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
    for field, plain in _PLAIN.items():
        if config.get(field) not in plain:
            raise UnsupportedAdapter(
                f"`{field}` in {folder / CONFIG} is {config[field]!r}, which is not known here: merge the adapter into"
                " its base with PEFT (`merge_and_unload`), and begin with that"
            )
    rank, alpha, wanted = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, (int, float)) or not wanted:
        raise UnsupportedAdapter(f"{folder / CONFIG} lacks `r`, `lora_alpha` or `target_modules`")
    named = (ALL,) if wanted == ALL else tuple(sorted(wanted)) if isinstance(wanted, list) else None
    if named is None:
        raise UnsupportedAdapter(f"`target_modules` in {folder / CONFIG} is a pattern: write a list of names")
    return _found(folder, base), Adapters(rank, float(alpha), named, start=str(folder))


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
"""Fields that change what an adapter computes, and the values with which it is the plain one. The head of a value or
reward model is trained beside it, and saved with it."""


def _found(folder: Path, base: str) -> str:
    """Where a base is: a folder that moved together with its adapter lies beside it."""
    beside = folder / Path(base).name
    return str(beside) if not Path(base).is_dir() and beside.is_dir() else base


def rename(folder: Path, final: Path) -> None:
    """Before a folder gets its final name, in the same place: an adapter that says that its base is in the folder says
    so by that name, for PEFT looks nowhere else. Raises OSError."""
    file = folder / CONFIG
    if not file.is_file():
        return
    config = json.loads(file.read_text("utf-8"))
    base = Path(str(config.get(BASE)))
    # Whoever wrote it may see the folder at another place than this process.
    if base.parent.name == folder.name:
        config[BASE] = str(base.parent.with_name(final.name) / base.name)
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def names_in(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names in a file of weights, each with what it is called in the model."""
    for name in files:
        yield name, name.removeprefix(PREFIX)
