"""Small files of strangers: what is no file, never ends, or is another file than it seems is told, and not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import rlgraph
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.files import read_bytes
from rlgraph.passes.cost.lengths import parse_lengths
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.lengths import read_fitted_lengths

READERS: dict[str, Callable[[str], object]] = {
    ".rlf": lambda path: rlgraph.compile(Path(path)),
    "plan.json": rlgraph.load_plan,
    "calibration.json": read_calibration,
    "lengths.json": read_fitted_lengths,
    "lengths.txt": parse_lengths,
    ".toml": read_cluster,
}


@pytest.mark.parametrize("ending", READERS)
def test_a_pipe_and_a_device_are_no_files(ending: str, tmp_path: Path) -> None:
    """Nobody writes into the pipe, and the device never ends."""
    pipe, device = tmp_path / f"pipe{ending}", tmp_path / f"device{ending}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(ProgramError, match="it is no regular file"):
            READERS[ending](str(path))


@pytest.mark.parametrize("ending", [ending for ending in READERS if ending != "lengths.txt"])
def test_a_file_that_is_too_large_is_not_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"large{ending}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProgramError, match="it is too large: it has more than"):
        READERS[ending](str(path))


def test_a_link_shows_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repository of a stranger may hold a link; what is behind it would be shown as the line with the mistake."""
    (tmp_path / "secret.txt").write_text("s3cret\n")
    (tmp_path / "link.rlf").symlink_to("secret.txt")
    (tmp_path / "user.rlf").write_text('algorithm a\nuse "link.rlf"\n')
    for name in ("link.rlf", "user.rlf"):
        assert run_command(["check", str(tmp_path / name)]) == 1
        told = capsys.readouterr()
        assert "it is a link to a file that does not end in .rlf or .rls" in told.err
        assert "s3cret" not in told.out + told.err


def test_a_link_to_a_program_is_one(tmp_path: Path) -> None:
    (tmp_path / "real.rlf").write_text("x")
    (tmp_path / "link.rlf").symlink_to("real.rlf")
    assert read_bytes(tmp_path / "link.rlf", 10, (".rlf",)) == b"x"


def test_what_is_handed_over_may_be_a_pipe() -> None:
    """As `rlgraph check <(make-program)` does."""
    ours, theirs = os.pipe()
    os.write(theirs, b"text")
    os.close(theirs)
    assert read_bytes(f"/dev/fd/{ours}", 10) == b"text"
    os.close(ours)
