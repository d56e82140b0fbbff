"""Which files a function is made of, as far as can be seen without running any."""

from __future__ import annotations

from pathlib import Path

from rlgraph.errors import NO_SPAN
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.imported_files import imported_files

FILES = {
    "rewards.py": "import os, json\nimport rlgraph\nfrom helper import letter\n",
    "helper.py": "def letter():\n    import deep.inner as inner\n    from deep import other\n    import rewards\n",
    "deep/inner.py": "import nowhere\n",
    "deep/other.py": "this is no Python\n",
    "unused.py": "",
}


def test_a_function_is_made_of_its_file_and_of_what_that_imports_beside_it(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = SearchFolders(tmp_path, tmp_path)

    def names(reference: str) -> set[str]:
        return {str(file.relative_to(tmp_path)) for file in imported_files(reference, folders, NO_SPAN)}

    assert names("rewards.py:f") == FILES.keys() - {"unused.py"}
    assert names("rewards:f") == FILES.keys() - {"unused.py"}
    assert names("deep/other.py:f") == {"deep/other.py"}
    assert names("gone.py:f") == names("rewards.py") == set()
    assert [file.name for file in imported_files("rlgraph.rewards:f", folders, NO_SPAN)] == ["rewards.py"]
