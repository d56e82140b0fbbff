"""Makes of a GGUF file the Hugging Face folder that engines read: once, and in the cache of the hub's client."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from rlgraph.backends.engines.errors import first_line
from rlgraph.backends.engines.sources import quiet_transformers
from rlgraph.catalog.models.gguf import UnusableGguf, gguf_config
from rlgraph.digests import file_fingerprint
from rlgraph.files import failure_reason

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def dequantized_folder(file: Path) -> Path:
    """Return the folder with the model of a GGUF file: its weights, dequantized to float32, and its tokenizer. It is
    written if it is not in the cache. Raises UnusableGguf, OSError."""
    from huggingface_hub import constants

    cache = Path(constants.HF_ASSETS_CACHE) / "rlgraph" / "gguf"
    folder = cache / f"{file.stem}-{file_fingerprint(file)}"
    if folder.is_dir():
        return folder
    gguf_config(file)  # Says what is wrong with the file itself.
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # The system takes the lock away when a process ends, however it does.
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _write(file, folder)
    except OSError as error:
        hint = "the environment variable `HF_HOME` names another folder for what is kept"
        raise UnusableGguf(f"cannot be kept in {str(cache)!r}: {failure_reason(error)}", hint) from None
    return folder


def _write(file: Path, folder: Path) -> None:
    """Write the folder at once: nobody sees a part of it, and what a killed process has left is removed."""
    model, tokenizer = _read(file)
    part = folder.with_name(f".{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with quiet_transformers():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        os.replace(part, folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        # safetensors has an error of its own for a full disk.
        raise OSError(str(error)) if type(error).__name__ == "SafetensorError" else error from None


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model and the tokenizer as transformers reads them from the file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Its progress bar for such files heeds no setting.
    with TemporaryDirectory(prefix="rlgraph-") as place, quiet_transformers(), redirect_stderr(StringIO()):
        # Alone in a folder: transformers would read templates and settings that lie beside it.
        (Path(place) / "model.gguf").symlink_to(file.resolve())
        options: dict[str, Any] = {"gguf_file": "model.gguf", "trust_remote_code": False}
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, **options)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, output_loading_info=True, **options
            )
            read, info = loaded
        # Files from elsewhere can make the code that reads them fail in any way.
        except Exception as error:
            message = f"cannot be read: {(first_line(error) or repr(error))[:300]}"
            raise UnusableGguf(message, "take the Hugging Face folder that it was made of") from None
        if info["missing_keys"]:
            message = f"lacks the weights {', '.join(sorted(info['missing_keys'])[:3])}"
            raise UnusableGguf(message, "take the Hugging Face folder that it was made of")
        # What was read counts as quantized, and cannot be saved: its weights go into a plain model.
        fields = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(type(read.config).from_dict(fields))
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
    return model, tokenizer
