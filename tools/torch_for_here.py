"""Says which torch pip shall install on this machine, as arguments for it: `make` asks.

The wheel for Linux on the usual index brings CUDA, 4.9 GB of it. Where there is no NVIDIA GPU and PyTorch's own index
for CPUs can be reached, it is the build for CPUs; else the pin alone, which is whatever pip is set up to find.

    python tools/torch_for_here.py 2.13.0
"""

from __future__ import annotations

import shutil
import sys
from urllib.request import urlopen

INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE_S = 5.0


def arguments(version: str, index: str = INDEX) -> list[str]:
    """Of `pip install`."""
    if sys.platform == "linux" and shutil.which("nvidia-smi") is None and _has(index, version):
        return ["--extra-index-url", index, f"torch=={version}+cpu"]
    return [f"torch=={version}"]


def _has(index: str, version: str) -> bool:
    """Asked here and not by pip: an index that does not answer would cost it minutes, and stop it."""
    try:
        with urlopen(f"{index}/torch/", timeout=PATIENCE_S) as answer:
            return f"torch-{version}%2Bcpu" in answer.read().decode(errors="replace")
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    print(*arguments(sys.argv[1]))
