"""The process that a user's Python file runs in, seen from rlgraph.

A reward function that never returns must not block a run for ever. A thread cannot be ended, and an endless regular
expression in one holds the interpreter lock, so that not even a timer fires: hence a process. It also survives a crash
of the user's C code, leaves the main thread to the user (`signal.alarm` works), and keeps the user's imports separate
from ours.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

T = TypeVar("T")

IMPORT_LIMIT_S = 600.0
"""The limit for loading a user's file: it may load a model."""
_GRACE_S = 2.0
"""How much longer than the limit the process may take to end itself before it is killed."""


@dataclass(frozen=True, slots=True)
class CodeSource:
    """What a process loads: a file, or a module by its name."""

    file: Path
    """The file, also of a module."""
    module: str = ""
    search: tuple[str, ...] = ()
    """The folders in which modules are searched; empty: those of this process."""


class CodeFailure(Exception):
    """The user's code did not return a value; `code_diagnostics.py` makes it a diagnostic."""

    file: str
    line: int
    """The line in the user's own code; 0 if it is unknown."""

    @property
    def in_words(self) -> str:
        """What happened, in a few words."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled with their positional arguments, and lose named ones.
        return type(self), tuple(vars(self).values())


@dataclass(eq=False)
class Raised(CodeFailure):
    """The user's code raised an exception."""

    type: str
    message: str
    file: str
    line: int

    @property
    def in_words(self) -> str:
        return f"it raised {self.type}{f': {self.message}' if self.message else ''}"


@dataclass(eq=False)
class WrongValue(CodeFailure):
    """The user's code returned something else than was asked for."""

    what: str
    row: int | None
    """The row of the call to which it belongs."""
    hint: str = ""
    """A hint on what to return."""
    file: str = ""
    line: int = 0

    @property
    def in_words(self) -> str:
        return f"it gave {self.what}"


@dataclass(eq=False)
class TimedOut(CodeFailure):
    """The user's code did not return in time."""

    limit_s: float
    file: str
    line: int

    @property
    def in_words(self) -> str:
        return f"it did not come back within {self.limit_s:g} s"


@dataclass(eq=False)
class Died(CodeFailure):
    """The process of the user's code ended."""

    how: str
    file: str
    line: int
    killed: bool = False
    """Whether someone else killed it, most often the system, for want of memory."""

    @property
    def in_words(self) -> str:
        return f"its process ended {self.how}"


@dataclass(frozen=True)
class _Process:
    """A running process, its connection and its log."""

    popen: subprocess.Popen[bytes]
    link: Connection
    log: IO[bytes]

    def end_process(self) -> None:
        """End the process and all that it has started."""
        self.link.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # This is before `wait`: until then no other process can have this number.
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


class Worker:
    """A process for one file or module of the user's; it is started when first needed, and again after it has ended."""

    def __init__(self, code: CodeSource) -> None:
        self.code = replace(code, file=code.file.resolve())
        self.generation = 1
        """It increases when the process ends, and the objects in it with it."""
        self._process: _Process | None = None
        self.killed = False
        """Whether someone else killed the previous process."""
        self._given_up = False
        """Whether `kill` has ended the process."""
        self._keys = itertools.count()
        self._lock = threading.Lock()

    def request(self, operation: str, *arguments: Any, limit_s: float) -> Any:
        """Return the result of `Child.<operation>(*arguments)`.

        Raises a `CodeFailure`. After `TimedOut` and `Died` the objects in the process are gone.
        """
        with self._lock:
            process = self._process
            try:
                if process is None:
                    process = self._start()
                    self._exchange(process, "load_early", IMPORT_LIMIT_S, ())
                return self._exchange(process, operation, limit_s, arguments)
            except (Raised, WrongValue):
                raise
            except BaseException:  # an interrupt too: a late answer must not meet the next question
                self._stop()
                raise

    def request_same_process(self, generation: int, operation: str, *arguments: Any, limit_s: float) -> Any:
        """Send a `request` to the process of this generation; 0: to any."""
        if generation not in (0, self.generation):
            raise self.lost_episode_error()
        return self.request(operation, *arguments, limit_s=limit_s)

    def lost_episode_error(self) -> Died:
        """Return the failure of an episode whose object ended with the previous process."""
        return Died("because of another episode", "", 0, self.killed)

    def new_object_key(self) -> int:
        """Return a new key for an object in the process."""
        return next(self._keys)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def kill(self) -> None:
        """End the process during a call that another thread waits for; that thread gets `Died`."""
        process = self._process
        if process is not None and process.popen.poll() is None:
            self._given_up = True
            process.popen.kill()
            process.popen.wait()

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.popen.poll() is None

    def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        script = Path(__file__).with_name("child.py")
        command = [sys.executable, "-u", str(script), str(theirs.fileno()), str(log.fileno())]
        with theirs:
            handles = (theirs.fileno(), log.fileno())
            popen = subprocess.Popen(command, pass_fds=handles, start_new_session=True)
        process = _Process(popen, Connection(ours.detach()), log)
        process.link.send((list(self.code.search) or sys.path, str(self.code.file), self.code.module))
        self._process, self._given_up = process, False
        self._end = weakref.finalize(self, process.end_process)
        return process

    def _stop(self) -> None:
        if self._process is not None:
            self._end()
            self._process = None
            self.generation += 1

    def _exchange(self, process: _Process, operation: str, limit_s: float, arguments: tuple[Any, ...]) -> Any:
        started_s = time.monotonic()
        unlimited = math.isinf(limit_s)
        try:
            process.link.send((operation, None if unlimited else limit_s, *arguments))
            if not process.link.poll(None if unlimited else limit_s + _GRACE_S):
                raise TimedOut(limit_s, "", 0)
            answer = process.link.recv_bytes()
        except (EOFError, ConnectionError):
            raise self._ended(process, limit_s, time.monotonic() - started_s) from None
        try:
            status, value = pickle.loads(answer)
        except Exception as error:
            raise WrongValue(f"a value that only its own file knows ({error})", None) from None
        if status == "raised":
            raise Raised(**value)
        if status == "wrong":
            raise WrongValue(*value)
        return value

    def _ended(self, process: _Process, limit_s: float, passed_s: float) -> CodeFailure:
        code = process.popen.wait()
        process.log.seek(0)
        dump = process.log.read().decode(errors="replace")
        file, line = _place(dump, str(self.code.file))
        if passed_s >= limit_s and "Timeout" in dump:
            return TimedOut(limit_s, file, line)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self.killed = code == -signal.SIGKILL and not self._given_up
        return Died(how, file, line, self.killed)


Ask = Callable[[int, str, tuple[Any, ...], float], tuple[int, Any]]
"""A function that takes the generation of the process, the operation, its arguments and its limit, and returns the
generation afterwards, and the answer or the `CodeFailure`."""


class RemoteWorker(Worker):
    """A worker whose process another process of the run has started; several may send requests to it."""

    def __init__(self, code: CodeSource, ask: Ask, caller: int) -> None:
        """caller: a unique number of each process that sends requests."""
        super().__init__(code)
        self.generation = 0
        self._ask = ask
        self._keys = itertools.count(caller << 32)

    def request(self, operation: str, *arguments: Any, limit_s: float) -> Any:
        with self._lock:
            self.generation, answer = self._ask(self.generation, operation, arguments, limit_s)
        if isinstance(answer, Died):
            self.killed = answer.killed
        if isinstance(answer, CodeFailure):
            raise answer
        return answer

    def kill(self) -> None:
        """Do nothing: the process ends with the run."""

    @property
    def is_running(self) -> bool:
        """Return True: the process runs as long as the run."""
        return True


def run_in_parallel(workers: Sequence[Worker], calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls of these processes, in the order of the calls; one process does one at a time. After
    a failure the processes are ended, so that nothing waits for the user's code."""
    if len(workers) == 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(len(workers)) as pool:
        try:
            return list(pool.map(lambda call: call(), calls))
        except BaseException:
            for worker in workers:
                worker.kill()
            raise


class Workers:
    """The processes of one run: one for each file or module, so that two functions of a file share its module."""

    def __init__(self, begin: Callable[[CodeSource, int], Worker] | None = None) -> None:
        """begin: makes the process with a slot number; None: processes are started here, when first needed."""
        self._begin = begin or (lambda code, slot: Worker(code))
        self._workers: dict[tuple[Path, str, int], Worker] = {}

    def worker_for(self, code: CodeSource, slot: int = 0) -> Worker:
        """Return the process number `slot` for `code`."""
        key = (code.file.resolve(), code.module, slot)
        if key not in self._workers:
            self._workers[key] = self._begin(code, slot)
        return self._workers[key]

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(dump: str, file: str) -> tuple[str, int]:
    """Return the innermost line of the user's file in the text that faulthandler has written."""
    places = re.findall(r'File "(.+)", line (\d+) in', dump)
    in_file = [place for place in places if place[0] == file]
    return (in_file[0][0], int(in_file[0][1])) if in_file else ("", 0)
