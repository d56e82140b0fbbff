"""Writes the folder."""

from __future__ import annotations

from pathlib import Path

from rlgraph.api.starter.files import (
    CHAT_MODEL,
    JUDGE_TEMPLATE,
    TEMPLATE,
    data_file_texts,
    environments_file_text,
    readme_text,
    rewards_file_text,
)
from rlgraph.api.starter.needs import needs_of
from rlgraph.api.starter.program import starter_text
from rlgraph.dsl.check import check
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import failure_reason
from rlgraph.passes.compilation.read_program import open_program_file

TAKEN = "E0790"


def write_starter(algorithm: str, folder: Path, model: str | None = None) -> list[Path]:
    """Write a folder with the program and what it needs, and return its files.

    algorithm: the name of one that ships, or a file. model: the source of its models: a name of the hub, a folder, or a
    GGUF file; None: the small chat model. Raises ProgramError for a program that is wrong, UsageMistake for a folder
    that has something in it.
    """
    opened = open_program_file(algorithm)
    program, _ = check(opened.source)
    needs = needs_of(program)
    files = data_file_texts(needs)
    files |= {"rewards.py": rewards_file_text(needs.functions)} if needs.functions else {}
    files |= {JUDGE_TEMPLATE: f"{TEMPLATE}\n"} if needs.judges else {}
    environments = [thing for thing in program.outside if thing.name in needs.environments]
    players = {str(thing.record.args[0]).rpartition(":")[2]: needs.environments[thing.name] for thing in environments}
    files |= {"envs.py": environments_file_text(players)} if players else {}
    # A name that ships is read from where it ships.
    published = opened.source.path != algorithm
    original = f"`rlgraph list {algorithm}` prints it as published" if published else f"`{algorithm}` is as it was"
    text, base = starter_text(inline_used_programs(opened.source), program, needs, _source(model), original)
    files[f"{program.name}.rlf"] = text
    files["README.md"] = readme_text(program.name, files, needs, model is None, original, base or "base")
    _need_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            # Mode x: what somebody has put there meanwhile stays.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        message = f"`{folder}` cannot be written: {failure_reason(error)}"
        raise _taken(message, "take a folder that you may write into") from None
    return [folder / name for name in files]


def _source(model: str | None) -> str:
    """Return the source of a model as an expression of the language."""
    if model is None:
        return f'gguf("{CHAT_MODEL}")'
    there = Path(model).expanduser()
    text = str(there.resolve()) if there.exists() else model
    written = "".join("\\" + character if character in '\\"' else character for character in text)
    return f'gguf("{written}")' if model.endswith(".gguf") else f'"{written}"'


def _need_empty(folder: Path) -> None:
    """Raise UsageMistake where something would be overwritten."""
    if folder.is_dir():
        inside = sorted(entry.name for entry in folder.iterdir())
        if inside:
            raise _taken(f"the folder `{folder}` is not empty: it has `{inside[0]}`")
    elif folder.exists():
        raise _taken(f"`{folder}` is a file")


def _taken(message: str, hint: str = "take a folder that is new or empty: nothing is overwritten") -> UsageMistake:
    return UsageMistake(Diagnostic(TAKEN, message, NO_SPAN, hint))
