"""How sharp the tests are: breaks one important line of rlgraph at a time, and says which suite notices.

`tools/mutants.toml` has the lines: a file, what is broken in plain words, the text, and what is put in its place. Each
is broken in a copy of the tree, in which then the tests run that reach the line, the cheapest file first, until one
fails. A mutant that `make test` does not find is tried with what only `make test-long` has.

    python tools/mutants.py --reach        # which tests reach which line: one run of all tests, an hour
    python tools/mutants.py                # breaks all of them, and prints a table
    python tools/mutants.py 3 17 --suite test

What is found out is kept in `build/mutants/`, so that a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "mutants"
SUITES = {"test": "not long", "long": "long"}
"""The tests of each that the other has not, as pytest selects them."""
COMMANDS = {"test": "`make test`", "long": "`make test-long`"}
CLUSTERS = "tests/backends/ray"
"""Their processes are older than a test, and know only which was the first: what one reaches, all may reach."""
LIMIT = 900
"""Seconds after which a mutant is found, because tests hang."""

PROBE = '''"""Which test reaches a line: made by tools/mutants.py."""
import os

_seen = set()


def hit(number):
    found = number, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if found not in _seen:
        _seen.add(found)
        with open({log!r}, "a") as file:
            file.write("%s\\t%s\\n" % found)
'''


@dataclass(frozen=True)
class Mutant:
    number: int
    file: str
    what: str
    was: str
    becomes: str

    def broken(self, text: str) -> str:
        assert text.count(self.was) == 1, (
            f"mutant {self.number}: `{self.was}` stands {text.count(self.was)} times in {self.file}"
        )
        return text.replace(self.was, self.becomes)


def mutants() -> list[Mutant]:
    entries = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text())["mutant"]
    return [Mutant(number, **entry) for number, entry in enumerate(entries, 1)]


def copy(to: Path) -> None:
    """Of all files that git knows or would, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def pytest(tree: Path, *arguments: str, limit: float | None = None) -> tuple[int, str]:
    """Exit status and output of a run in a copy; 1 where it does not end."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=limit)
        return run.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, 9)
        return 1, f"FAILED it has not ended after {limit:.0f} s"


# Which tests reach which line


def probed(text: str, mutant: Mutant) -> str:
    """The file with a probe before the statement that is to be broken."""
    line = text[: text.index(mutant.was)].count("\n") + 1
    inside = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    lines = text.splitlines(keepends=True)
    # An `elif` has no place before it.
    node = max(
        (each for each in inside if not lines[each.lineno - 1].lstrip().startswith(("elif", "else"))),
        key=lambda each: each.lineno,
    )
    indent = " " * node.col_offset
    lines.insert(node.lineno - 1, f'{indent}__import__("rlgraph._reached")._reached.hit({mutant.number})\n')
    return "".join(lines)


def reach() -> None:
    """One run of all tests with probes; writes `reached.json` and `seconds.json`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    log = KEPT / "reached.txt"
    log.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy(tree)
        (tree / "rlgraph" / "_reached.py").write_text(PROBE.format(log=str(log)))
        by_file = defaultdict(list)
        for mutant in mutants():
            by_file[mutant.file].append(mutant)
        for name, some in by_file.items():
            text = (tree / name).read_text()
            # From the last line to the first, so that a probe does not change where the others have to be.
            for mutant in sorted(some, key=lambda each: -text.index(each.was)):
                mutant.broken(text)
                text = probed(text, mutant)
            (tree / name).write_text(text)
        shared = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--ignore", CLUSTERS)
        for name, arguments in {"shared": shared, "ray": (CLUSTERS,)}.items():
            status, output = pytest(tree, *arguments)
            (KEPT / f"reach-{name}.log").write_text(output)
            print(f"{name}: {output.strip().splitlines()[-1]}", flush=True)
        shutil.copy2(tree / "build" / "times-long.json", KEPT / "seconds.json")
    found: dict[str, set[str]] = defaultdict(set)
    named = {str(mutant.number): mutant.what for mutant in mutants()}
    for line in log.read_text().splitlines():
        number, test = line.split("\t")
        found[named[number]].add(test)
    (KEPT / "reached.json").write_text(json.dumps({what: sorted(tests) for what, tests in found.items()}, indent=0))


# Whether tests notice


def in_order(files: Iterable[str], mutant: Mutant, seconds: dict[str, float]) -> list[str]:
    """Those of the folder that is called as the broken file's package first, and of these the cheapest; what starts
    clusters last."""
    package = mutant.file.split("/")[1]
    taken: dict[str, float] = defaultdict(float)
    for test, one in seconds.items():
        taken[test.split("::")[0]] += one
    return sorted(
        files, key=lambda file: (file.startswith(CLUSTERS), not file.startswith(f"tests/{package}/"), taken[file], file)
    )


def failed(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else "?"


def noticed(
    tree: Path, mutant: Mutant, suite: str, reached: set[str], seconds: dict[str, float], clusters: bool
) -> str:
    """The first test of the suite that fails, or nothing. clusters: also of those that start one."""
    place = tree / mutant.file
    whole = place.read_text()
    place.write_text(mutant.broken(whole))
    try:
        # Processes that fork others are older than a test, too: the folder of the package is asked as a whole.
        package = f"tests/{mutant.file.split('/')[1]}/"
        files = {test.split("::")[0] for test in [*reached, *(test for test in seconds if test.startswith(package))]}
        if not clusters:
            files = {file for file in files if not file.startswith(CLUSTERS)}
        elif any(file.startswith(CLUSTERS) for file in files):
            files |= {test.split("::")[0] for test in seconds if test.startswith(CLUSTERS)}
        order = in_order((file for file in files if (tree / file).is_file()), mutant, seconds)
        status, output = pytest(tree, "-x", "-m", SUITES[suite], *order, limit=LIMIT) if order else (5, "")
        assert status not in (-2, -9, -15), "somebody has ended the tests: nothing is known"
        return "" if status in (0, 5) else failed(output)
    finally:
        place.write_text(whole)


@contextmanager
def trees(count: int) -> Iterator[Queue[Path]]:
    with tempfile.TemporaryDirectory() as folder:
        free: Queue[Path] = Queue()
        for number in range(count):
            tree = Path(folder) / str(number)
            tree.mkdir()
            copy(tree)
            free.put(tree)
        yield free


def run(numbers: list[int], suites: list[str], jobs: int, clusters: bool) -> dict[str, dict[str, str]]:
    """By mutant and suite, which test fails."""
    reached = json.loads((KEPT / "reached.json").read_text())
    seconds = json.loads((KEPT / "seconds.json").read_text())
    path = KEPT / "noticed.json"
    results: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.is_file() else {}
    with trees(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def one(mutant: Mutant) -> None:
            tree, start = free.get(), time.monotonic()
            found = results.setdefault(mutant.what, {})
            try:
                for suite in suites:
                    if suite not in found:
                        tests = set(reached.get(mutant.what, ()))
                        first = noticed(tree, mutant, suite, tests, seconds, clusters)
                        if not first and not clusters and any(test.startswith(CLUSTERS) for test in tests):
                            # Clusters may still notice it.
                            break
                        found[suite] = first
                    if found[suite]:
                        break
            finally:
                free.put(tree)
            path.write_text(json.dumps(results, indent=1))
            print(f"{mutant.number:3} {time.monotonic() - start:5.0f} s  {mutant.what}: {found}", flush=True)

        # What few tests reach is found out soon.
        asked = [mutant for mutant in mutants() if not numbers or mutant.number in numbers]
        list(pool.map(one, sorted(asked, key=lambda mutant: len(reached.get(mutant.what, ())))))
    return results


def table(results: dict[str, dict[str, str]]) -> str:
    lines = ["| mutant | what is broken | where | found by |", "|--:|---|---|---|"]
    counts: dict[str, int] = defaultdict(int)
    for mutant in mutants():
        found = results.get(mutant.what, {})
        suite = next((suite for suite in SUITES if found.get(suite)), "")
        tried = [COMMANDS[suite] for suite in SUITES if suite in found]
        # A suite that was not asked may still notice it.
        missed = "nobody" if len(tried) == len(SUITES) else f"not {', '.join(tried)}" if tried else "not tried"
        counts[COMMANDS.get(suite, missed)] += 1
        by = f"{COMMANDS[suite]}: {found[suite]}" if suite else missed
        lines.append(f"| {mutant.number} | {mutant.what} | {mutant.file} | {by} |")
    told = ", ".join(f"{count} {by}" for by, count in counts.items())
    return "\n".join([*lines, "", f"{len(mutants())} mutants: {told}"])


def main() -> int:
    parser = argparse.ArgumentParser(description="breaks one line at a time, and says which suite finds it")
    parser.add_argument("numbers", type=int, nargs="*", help="these alone")
    parser.add_argument("--reach", action="store_true", help="find out which tests reach which line")
    parser.add_argument("--suite", choices=SUITES, action="append", help="this one alone")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--no-clusters", action="store_true", help="leave what starts Ray for another call")
    parser.add_argument("--again", action="store_true", help="forget what was found out")
    given = parser.parse_args()
    if given.reach:
        reach()
        return 0
    if not (KEPT / "reached.json").is_file():
        print("nobody knows yet which tests reach which line: run it with --reach first", file=sys.stderr)
        return 2
    if given.again:
        (KEPT / "noticed.json").unlink(missing_ok=True)
    print(table(run(given.numbers, given.suite or list(SUITES), given.jobs, not given.no_clusters)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
