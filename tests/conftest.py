"""What all tests share."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rlgraph.errors import Source, Span
from rlgraph.passes.placement.search import progress
from rlgraph.user_code import Workers
from rlgraph.user_code.spec import CallSpec
from tests import times
from tests.waits import NEVER

# The models are tiny: more threads would only wait for one another, above all where tests run side by side. torch reads
# this while it is imported, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: tests that send Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under `nohup`, and so would all that tests start.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

if find_spec("ray") is None:
    # The folder of its tests, which pytest puts on the path, would be taken for it.
    sys.modules["ray"] = None  # type: ignore[assignment]

# How long an example takes, or is drawn for, says more of the machine than of the code.
settings.register_profile("drawn", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("drawn"), derandomize=True, database=None)


def pytest_configure(config: pytest.Config) -> None:
    """A change is tested with the same examples each time: what others would find is `make test-long`'s to say."""
    settings.load_profile("same" if config.option.markexpr == "not long" else "drawn")


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> None:
    """Tests before this one, of the same process, may have left a handler that ends it; one of a library in C, Python
    would not know of."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is raised while one of these runs is lost, a Ctrl-C that comes while garbage is collected among it. Hypothesis
    # has one, to take collections off deadlines, which no test here has; it does not put it back.
    gc.callbacks[:] = [call for call in gc.callbacks if not str(call.__module__).startswith("hypothesis.")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is said now into the golden files")
    parser.addoption("--update-times", action="store_true", help="keep what tests take now in tests/times.json")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    times.note(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        suite = "test" if config.option.markexpr == "not long" else "long"
        whole = not config.option.keyword and all(Path(name).is_dir() for name in config.args)
        times.tell(terminalreporter, suite, config.option.update_times, whole)


def declare(line: str) -> CallSpec:
    """The call in `func f = python("a.py:f", batch=2)`; it is written as Python would write it."""
    source = Source("p.rlf", line)
    begin = line.index("= ") + 2
    call = ast.parse(line[begin:], mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)

    def span(node: ast.expr) -> Span:
        assert node.end_col_offset is not None
        return Span(source, 1, begin + node.col_offset + 1, 1, begin + node.end_col_offset + 1)

    options = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    spans: dict[int | str, Span] = {place: span(node) for place, node in enumerate(call.args)}
    spans |= {name: span(node) for name, node in options.items()}
    args = tuple(ast.literal_eval(node) for node in call.args)
    values = {name: ast.literal_eval(node) for name, node in options.items()}
    return CallSpec(call.func.id, args, values, span(call), spans)


def pytest_unconfigure() -> None:
    # Some extension modules complain where theirs is still there in the end.
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    """What is there by now stays there, thousands of modules and tests: the garbage collector, which some tests call
    again and again, need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What `datasets` keeps of the tables of tests goes when they do; the package reads this when it is loaded."""
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session", autouse=True)
def environments_are_waited_for() -> None:
    """However busy the machine is, the same rows are sampled together: tests compare to the last bit."""
    if find_spec("torch"):
        from rlgraph.backends.worker import turn_play

        turn_play.QUIET_S = NEVER


@pytest.fixture(scope="session", autouse=True)
def searches_say_nothing_on_the_way() -> None:
    """However busy the machine is, what commands print is the same: lines of progress come after a second."""
    progress.QUIET_S = NEVER


@pytest.fixture(scope="module")
def slow_rows() -> Iterator[None]:
    """Sampling on GPUs takes as long as it did with vLLM 0.12: cases show something where it is much of a step."""
    from benchmarks.older_vllm import older_vllm

    with older_vllm():
        yield


@pytest.fixture(scope="module")
def quick_rows() -> Iterator[None]:
    """Sampling on GPUs waits for no host: cases show something where devices decide."""
    from benchmarks.older_vllm import NO_HOST, differing

    with differing({("vllm", "generate"): NO_HOST}):
        yield


@pytest.fixture(name="declare")
def _declare() -> Callable[[str], CallSpec]:
    return declare


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Processes that end with the test."""
    with Workers() as made:
        yield made


@pytest.fixture
def rewards(tmp_path: Path) -> Callable[[str], Path]:
    """Writes `rewards.py`, and gives its folder."""

    def write(text: str) -> Path:
        (tmp_path / "rewards.py").write_text(text)
        return tmp_path

    return write
