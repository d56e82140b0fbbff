"""Digests of files: what is looked at, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlgraph import digests
from rlgraph.digests import FileDigests, digests_of, file_fingerprint


def test_what_is_written_piece_by_piece_has_the_digests_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "STRETCH", 8)
    for size in (0, 1, 7, 8, 9, 16, 41):
        content, file = bytes(range(size)), tmp_path / "file"
        with file.open("wb") as opened:
            out = digests.DigestWriter(opened)
            for start, end in ((0, 3), (3, 4), (4, 30), (30, size)):
                out.write(content[start:end])
            told = out.written_digests()
        assert file.read_bytes() == content
        assert told == digests_of(file) and told.bytes == size
        assert FileDigests.from_plain(told.to_plain()) == told
        assert len({told.stretch_digest(stretch) for stretch in range(-(-size // 8))}) == -(-size // 8)
        if size:
            with pytest.raises(ValueError, match="as many digests"):
                FileDigests.from_plain({**told.to_plain(), "bytes": size + 8})


def test_of_a_large_file_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size, its first and its last bytes are among it; without a change it is the same file, whenever it was
    written."""
    monkeypatch.setattr(digests, "STRETCH", 16)
    monkeypatch.setattr(digests, "_SAMPLES", 8)
    file, content = tmp_path / "data", bytes(16 * 64)
    file.write_bytes(content)
    whole = file_fingerprint(file)
    monkeypatch.setattr(digests, "WHOLE", 16 * 63)
    part = file_fingerprint(file)
    assert part != whole

    def changed(place: int) -> str:
        file.write_bytes(content[:place] + b"x" + content[place + 1 :])
        return file_fingerprint(file)

    assert changed(0) != part and changed(16 * 64 - 1) != part and changed(16 * 9) != part
    assert changed(16 * 10) == part
    file.write_bytes(content + b"\0")
    assert file_fingerprint(file) != part
    file.write_bytes(content)
    assert file_fingerprint(file) == part
