"""What this machine has: cores, devices, memory, disk, shared memory, and whether the hub answers."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rlgraph import __version__
from rlgraph.catalog.clusters.processor import bfloat16_units, processor_flags
from rlgraph.runs.doctor.finding import Finding, format_bytes
from rlgraph.runs.doctor.packages import own_requirements, package_findings
from rlgraph.runs.options import BACKENDS, LOCAL

LITTLE_DISK = 2e9
"""Bytes below which a disk counts as nearly full: a checkpoint of a small model takes as many."""
LITTLE_SHARED = 1e9
"""Bytes of shared memory below which processes that share rows in it are slow or end; Docker gives 64 MB."""


def machine_findings() -> Iterator[Finding]:
    """Yield what there is on this machine, one check after the other."""
    where = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", "python", f"{platform.python_version()} in {sys.prefix}, on {where}")
    yield Finding("ok", "rlgraph", __version__)
    yield from package_findings(own_requirements())
    yield from device_findings()
    total, free = memory_bytes()
    if total:
        yield Finding("ok", "memory", f"{format_bytes(free)} of {format_bytes(total)} are free")
    for what, place in {
        "runs": Path.cwd(),
        "temporary": Path(tempfile.gettempdir()),
        "models": model_cache_folder(),
    }.items():
        yield disk_finding(what, place)
    if any(spec.processes and spec.missing_package is None for spec in BACKENDS.values()):
        yield from shared_memory_findings(Path("/dev/shm"))
    yield from hub_findings()


def device_findings() -> Iterator[Finding]:
    """Yield the processor's cores, and the GPUs that torch sees."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    units = bfloat16_units(processor_flags())
    fast = f", fast with bfloat16 ({', '.join(units)})" if units else ""
    yield Finding("ok", "cores", f"{cores}{fast}")
    if find_spec("torch") is None:
        yield Finding("note", "devices", "none is looked at without torch, which runs need", LOCAL.install_command)
        return
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            yield Finding("ok", f"cuda:{number}", f"{name}, {format_bytes(free)} of {format_bytes(total)} are free")
    elif Path("/dev/nvidiactl").exists():
        why = "is a build for CPUs" if torch.version.cuda is None else "does not get along with its driver"
        hint = "pip install a torch for your driver: https://pytorch.org/get-started/locally"
        yield Finding("warning", "devices", f"a GPU is here, and torch {torch.__version__} {why}", hint)
    else:
        yield Finding("ok", "devices", "no GPU: models are on the processor, in float32")


def memory_bytes() -> tuple[int, int]:
    """Return the bytes of memory that this process may use, and how many of them are free: of its container, where that
    has less than the machine. Zeros where that is not known."""
    lines = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    total, free = (int(lines.get(name, "0 kB").split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdecimal() and used.isdecimal() and int(limit) < total:
        return int(limit), min(free, int(limit) - int(used))
    return total, free


def disk_finding(what: str, place: Path) -> Finding:
    """Return whether the folder can be written to, and how much room there is; it may not exist yet."""
    there = next((folder for folder in (place, *place.parents) if folder.exists()), Path("/"))
    if not os.access(there, os.W_OK):
        return Finding("fails", what, f"{there} cannot be written to", _elsewhere(what))
    free = shutil.disk_usage(there).free
    message = f"{place}: {format_bytes(free)} of the disk are free"
    if free < LITTLE_DISK:
        return Finding("warning", what, message, f"make room, or {_elsewhere(what)}")
    return Finding("ok", what, message)


def _elsewhere(what: str) -> str:
    ways = {"temporary": "set `TMPDIR` to another folder", "models": "set `HF_HOME` to another folder"}
    return ways.get(what, "go to another folder, or say one with `--out`")


def shared_memory_findings(place: Path) -> Iterator[Finding]:
    """Yield how large the memory is that processes of a run share rows in."""
    if not place.is_dir():
        return
    total = shutil.disk_usage(place).total
    if total < LITTLE_SHARED:
        hint = "start the container with more: `docker run --shm-size=8g ...`"
        yield Finding("warning", "shared", f"{place} has {format_bytes(total)}: rows go through the disk", hint)
    else:
        yield Finding("ok", "shared", f"{place} has {format_bytes(total)}")


def model_cache_folder() -> Path:
    """Return the folder in which the hub's client stores models."""
    if find_spec("huggingface_hub") is None:
        return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def hub_findings() -> Iterator[Finding]:
    """Yield whether the Hugging Face hub answers; nothing without its client."""
    if find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import constants, get_token

    from rlgraph.catalog.models.hub_availability import VARIABLES
    from rlgraph.hub import hub_failure

    failure = hub_failure()
    if failure:
        read = ", ".join(f"`{name}`" for name in VARIABLES)
        hint = f"a folder and a GGUF file need no hub; `hf download NAME` stores a model here; {read} are read"
        yield Finding("note", "hub", f"{failure}; what is stored here can be had", hint)
        return
    who = "with a token" if get_token() else "without a token, which gated models need (`hf auth login`)"
    yield Finding("ok", "hub", f"{constants.ENDPOINT} answers, {who}")


def _read(path: str) -> str:
    """Return the text of a file of the system; empty where there is none."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
