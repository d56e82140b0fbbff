"""Golden files: cases between lines of `===`, each a text, a line `---` and what is expected of it.

`pytest --update-golden` writes what is made now; read the difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def cases(path: Path) -> list[tuple[str, str]]:
    """Text and expectation of every case of a file."""
    found = []
    for block in path.read_text("utf-8").split("\n===\n"):
        text, _, expected = block.strip("\n").partition("\n---")
        found.append((text, expected.strip("\n")))
    return found


def check(path: Path, make: Callable[[str], str], *, update: bool) -> None:
    """Compare every case of a file with what `make` makes of its text; all that differ are shown."""
    made = [(text, make(text).strip("\n"), expected) for text, expected in cases(path)]
    if update:
        path.write_text("\n===\n".join(f"{text}\n---\n{now}" for text, now, _ in made) + "\n", "utf-8")
        return
    wrong = [f"{text}\n--- is now\n{now}\n--- was\n{was}" for text, now, was in made if now != was]
    assert not wrong, f"{path.name}: {len(wrong)} of {len(made)} cases\n" + "\n===\n".join(wrong)
