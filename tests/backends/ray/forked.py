"""Workers of Ray that are forked, by a process that has imported torch and the engines, in place of being started: most of
what a test would take is the time in which each of its processes imports the same.

Ray runs this file where it would run `setup_worker.py`, with the same arguments. A worker whose environment asks for it is
forked; every other one is started as Ray starts it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ASKS = "RLGRAPH_TEST_FORKED"
"""The variable with which a worker asks for it."""
LISTENS = "RLGRAPH_TEST_FORKS"
"""The variable with the path of the socket on which that process listens."""

IMPORTED = (
    "ray._private.workers.default_worker",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.modeling_utils",
    "rlgraph.backends.ray.worker",
    "rlgraph.backends.engines.transformers.engine",
    "rlgraph.backends.engines.megatron.engine",
)
"""Those of them that are there, and vLLM."""

CONTEXT = "--serialized-runtime-env-context="


def main(arguments: list[str]) -> None:
    """In place of `setup_worker.py`."""
    context = next((json.loads(each.removeprefix(CONTEXT)) for each in arguments if each.startswith(CONTEXT)), {})
    asked = {**os.environ, **context.get("env_vars", {})}
    if ASKS not in asked:
        import ray

        setup = Path(ray.__file__).parent / "_private" / "workers" / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(setup), *arguments])
    command = [each for each in arguments if not each.startswith((CONTEXT, "--language="))]
    with _connected(asked) as forks:
        forks.sendall(json.dumps({"command": command, "environment": asked, "folder": os.getcwd()}).encode())


def _connected(environment: dict[str, str]) -> socket.socket:
    """To the process that forks, which the first one starts who needs it."""
    path = environment[LISTENS]
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = socket.socket(socket.AF_UNIX)
        try:
            found.connect(path)
            return found
        except OSError:
            found.close()
        Path(path).unlink(missing_ok=True)
        listens = socket.socket(socket.AF_UNIX)
        listens.bind(path)
        # Who comes while it imports waits for it.
        listens.listen(64)
        here = str(listens.fileno())
        command = [sys.executable, __file__, here]
        subprocess.Popen(command, env=environment, pass_fds=[listens.fileno()], process_group=0)
        found = socket.socket(socket.AF_UNIX)
        found.connect(path)
        return found


def forks(listens: socket.socket) -> None:
    """Until the raylet is gone, whose workers these are."""
    import gc
    import importlib

    for module in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(module)
    from rlgraph.backends.engines.base import EngineError
    from rlgraph.backends.engines.vllm.environment import import_vllm

    with suppress(EngineError):
        import_vllm()
    # What is there by now is shared with all of them: nobody looks at it again.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    raylet = int(os.environ["RAY_RAYLET_PID"])
    listens.settimeout(1.0)
    while _lives(raylet):
        try:
            found, _ = listens.accept()
        except TimeoutError:
            continue
        with found, found.makefile("rb") as asked:
            told = asked.read()
        if told and not os.fork():
            listens.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(**json.loads(told))


def _work(command: list[str], environment: dict[str, str], folder: str) -> None:
    """Is that worker."""
    import runpy

    # Ray ends the group of a process with it.
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        forks(socket.socket(fileno=int(sys.argv[1])))
    else:
        main(sys.argv[1:])
