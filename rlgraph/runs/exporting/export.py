"""Exports a model of a run: to a folder, to the Hugging Face hub, or as a GGUF file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rlgraph.catalog.models.adapters import CONFIG, find_adapter
from rlgraph.catalog.models.families import ModelKind
from rlgraph.errors import NO_SPAN, Diagnostic, RlgraphError, RunError, UsageMistake
from rlgraph.files import cause_text
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.checkpoint.disk import flush_folder
from rlgraph.runs.checkpoint.model_folders import copy_folder, merge_adapters, name_base, write_saved_model
from rlgraph.runs.exporting.card import CARD, model_card
from rlgraph.runs.exporting.choice import LAST, ExportChoice, choose_weights, nothing_to_export
from rlgraph.runs.exporting.run_program import compile_run


@dataclass(frozen=True)
class ExportRequest:
    """What is exported, and how."""

    run: Path
    model: str | None = None
    """The model's name in the program; None: the only one that was trained."""
    step: str = LAST
    """A number, `best`, or `last`."""
    merge: bool = False
    """Whether adapters are merged into their base."""
    output: Path | None = None
    """The folder, or the GGUF file; None: one beside the run's models."""
    repo: str | None = None
    """The repository of the hub, as `OWNER/NAME`."""
    private: bool = False
    type: str | None = None
    """The type of the weights in a GGUF file."""


@dataclass(frozen=True)
class Exported:
    """What was exported, and where it is now."""

    model: str
    step: int
    where: str


def export_to_folder(request: ExportRequest) -> Exported:
    """Write a Hugging Face folder with a card. Raise UsageMistake, and RunError if it cannot be written."""
    choice = choose_weights(request.run, request.model, request.step)
    final = request.output or _beside(choice)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise _failed(f"`{final}` is not empty", "take another one with `--output`", UsageMistake)
    draft = final.with_name(f".{final.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        choice = _write(request, choice, draft, final.name)
        name_base(draft, final)
        flush_folder(draft)
        if final.exists():
            final.rmdir()
        draft.rename(final)
    except OSError as error:
        raise _failed(f"`{final}` cannot be written: {cause_text(error)}", "take another one with `--output`") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(choice.model, choice.step, str(final))


def export_to_hub(request: ExportRequest) -> Exported:
    """Send a folder to the hub. Raise UsageMistake, and RunError if the hub does not take it."""
    if request.repo is None:
        raise _failed("no repository is named", "say which one: `--repo OWNER/NAME`", UsageMistake)
    choice = choose_weights(request.run, request.model, request.step)
    with TemporaryDirectory(prefix="rlgraph-") as place:
        folder = Path(place) / "model"
        choice = _write(request, choice, folder, request.repo.rpartition("/")[2])
        adapter = find_adapter(str(folder))
        if adapter is not None and Path(adapter[0]).is_dir():
            message = f"the base of `{choice.model}`'s adapters is a folder of this machine, `{adapter[0]}`"
            raise _failed(message, "nobody else could load them: take `--merge`", UsageMistake)
        return Exported(choice.model, choice.step, _upload(folder, request.repo, request.private))


def export_to_gguf(request: ExportRequest) -> Exported:
    """Write a GGUF file. Raise UsageMistake, and RunError if it cannot be written."""
    from rlgraph.runs.exporting.gguf_file import require_gguf, write_gguf

    kind = require_gguf(request.type)
    choice = choose_weights(request.run, request.model, request.step)
    final = request.output or _beside(choice).with_suffix(".gguf")
    if final.exists():
        raise _failed(f"`{final}` is there already", "take another file with `--output`", UsageMistake)
    draft = final.with_name(f".{final.name}.part")
    try:
        with TemporaryDirectory(prefix="rlgraph-") as place:
            folder = Path(place) / "model"
            # A GGUF file has no adapters.
            choice = _write(replace(request, merge=True), choice, folder, final.stem)
            final.parent.mkdir(parents=True, exist_ok=True)
            write_gguf(folder, draft, final.stem, kind)
        draft.rename(final)
    except OSError as error:
        raise _failed(f"`{final}` cannot be written: {cause_text(error)}", "take another one with `--output`") from None
    finally:
        draft.unlink(missing_ok=True)
    return Exported(choice.model, choice.step, str(final))


TARGETS: Mapping[str, Callable[[ExportRequest], Exported]] = {
    "folder": export_to_folder,
    "hub": export_to_hub,
    "gguf": export_to_gguf,
}
"""What exports to each target."""


def _beside(choice: ExportChoice) -> Path:
    step = f"-step-{choice.step}" if choice.step else ""
    return choice.run / "exported" / f"{choice.model}{step}"


def _write(request: ExportRequest, choice: ExportChoice, folder: Path, title: str) -> ExportChoice:
    """Write a model as a folder, and return what was taken: of a run that goes on a checkpoint may be gone meanwhile.
    Raise RlgraphError, OSError."""
    from rlgraph.backends.engines.errors import EngineError

    folder.mkdir(parents=True)
    try:
        try:
            compiled = _write_weights(request, choice, folder)
        except (RlgraphError, OSError):
            newer = choose_weights(request.run, request.model, request.step)
            if newer == choice:
                raise
            shutil.rmtree(folder)
            folder.mkdir()
            choice, compiled = newer, _write_weights(request, newer, folder)
    except EngineError as error:
        raise nothing_to_export(f"`{choice.model}` cannot be exported: {error}", "see what its source is") from None
    (folder / CARD).write_text(model_card(choice, compiled, title, merged=_is_merged(request, choice)), "utf-8")
    return choice


def _write_weights(request: ExportRequest, choice: ExportChoice, folder: Path) -> Compilation | None:
    """Write the weights, and return the run's program, if it can be compiled here."""
    compiled: Compilation | None = None
    with suppress(RlgraphError, OSError):
        compiled = compile_run(request.run)
    with TemporaryDirectory(prefix=".rlgraph-", dir=folder.parent) as place:
        plain = Path(place) / "plain" if request.merge else folder
        if choice.folder is not None:
            source = choice.folder
            if not request.merge:
                copy_folder(source, folder)
        else:
            assert choice.saved is not None
            # What is wrong with it is told now: without it nobody knows what the weights are of.
            write_saved_model(choice.saved, choice.model, compiled or compile_run(request.run), plain)
            source = plain
        if request.merge and not merge_adapters(source, folder, _kind(compiled, choice.model)):
            copy_folder(source, folder)
    return compiled


def _kind(compiled: Compilation | None, model: str) -> ModelKind:
    with suppress(RlgraphError, LookupError):
        if compiled is not None:
            kind: ModelKind = compiled.program.model(model).kind  # type: ignore[assignment]
            return kind
    return "causal_lm"


def _is_merged(request: ExportRequest, choice: ExportChoice) -> bool:
    return request.merge and (choice.folder is None or (choice.folder / CONFIG).is_file())


def _upload(folder: Path, repo: str, private: bool) -> str:
    """Send a folder to the hub, and return its address. Raise RunError."""
    import huggingface_hub
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        hub = huggingface_hub.HfApi(library_name="rlgraph")
        hub.create_repo(repo, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="A model trained with rlgraph")
        return f"{hub.endpoint}/{repo}"
    except Exception as error:  # HTTP errors, those of the connection, and several of its own
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, LocalTokenNotFoundError) or status in (401, 403):
            message = f"the hub does not let you write `{repo}`: {_first_line(error)}"
            hint = "log in with a token that may write: `hf auth login`, or the variable `HF_TOKEN`"
            raise _failed(message, hint) from None
        message = f"the hub did not take `{repo}`: {_first_line(error)}"
        hint = "without a network: `--to folder --output DIR`, and `hf upload OWNER/NAME DIR` where there is one"
        raise _failed(message, hint) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _failed(message: str, hint: str, kind: type[RunError] | type[UsageMistake] = RunError) -> RlgraphError:
    return kind(Diagnostic("E0879", message, NO_SPAN, hint))
