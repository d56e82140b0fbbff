"""How soon the page of a long run is there: of 10,000 steps and a million samples.

python benchmarks/watch_page.py

read      seconds of the server, which reads the folder and makes the page; of its CPU time
page kB   what the browser gets
opened    seconds until a headless Chromium has loaded and drawn it, the server's included
again     the same when the server has read the folder before
plan      seconds until the picture of the plan is drawn
samples   seconds until the first samples are there
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlgraph.runs.watching.run_reader import RunReader
from rlgraph.runs.watching.server import WatchServer
from tests.runs.written_runs import written_run
from tests.viz.browser import CHROMIUM, Browser

PLAN = "showTab('plan')"


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100, help="samples of a step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        more = {f"metric/{number}": 0.1 * number for number in range(10)}
        written_run(run, options.steps, rows=options.rows, more=more)
        began, cpu = time.perf_counter(), time.process_time()
        server = WatchServer([RunReader(run)])
        answer = server.answer("", {})
        assert answer is not None
        print(f"read      {time.perf_counter() - began:.2f} s, {time.process_time() - cpu:.2f} s of CPU time")
        print(f"page      {len(answer[1]) / 1e3:.0f} kB")
        server.close()
        if CHROMIUM is not None:
            server = WatchServer([RunReader(run)])
            thread = threading.Thread(target=server.serve)
            thread.start()
            browser = Browser(Path(name) / "profile", 1400, 900)
            print(f"opened    {seconds(lambda: browser.open(server.address)):.2f} s")
            print(f"again     {seconds(lambda: browser.open(server.address)):.2f} s")
            print(f"plan      {seconds(lambda: browser.run(PLAN)):.2f} s")
            show = "showTab('samples'); samples.show().then(() => true)"
            print(f"samples   {seconds(lambda: browser.run(show)):.2f} s")
            browser.close()
            server.shutdown()
            thread.join()
            server.close()


if __name__ == "__main__":
    main()
