"""What is installed for vLLM: all that its wheel needs on this machine, and nothing of torch's family."""

from __future__ import annotations

import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "tools" / "install_cpu_engines.py"

METADATA = f"""\
Metadata-Version: 2.4
Name: engine
Version: 1.0
Requires-Dist: regex
Requires-Dist: transformers<6,>=5
Requires-Dist: fastapi[standard]>=0.133
Requires-Dist: torch==2.13.0+cpu
Requires-Dist: torchaudio
Requires-Dist: torchvision; sys_platform == "{sys.platform}"
Requires-Dist: ninja; sys_platform == "{sys.platform}"
Requires-Dist: elsewhere; sys_platform == "nowhere"
Requires-Dist: pandas; extra == "bench"
"""


def test_what_a_wheel_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine-1.0.dist-info/METADATA", METADATA)
    spec = spec_from_file_location("install_cpu_engines", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script._needed_by(wheel) == ["regex", "transformers<6,>=5", "fastapi[standard]>=0.133", "ninja"]
