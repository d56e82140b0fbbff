"""A compiled program in Python, with methods for its graph, its plan, its pictures, and running it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import uuid4

from rlgraph.api.summary import summary_text
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.errors.arguments import check_arguments, wrong_argument
from rlgraph.files import failure_reason
from rlgraph.ir.graph import Graph
from rlgraph.ir.text.plain_data import to_plain_data
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.options import LOCAL, RESTARTS, VERIFY_WEIGHTS, RunOptions

if TYPE_CHECKING:
    from rlgraph.explain.explain import Explanation
    from rlgraph.explain.whatif import Sweep
    from rlgraph.runs.events import Read
    from rlgraph.runs.run import Run
    from rlgraph.viz.lanes import Lanes


Picture = Literal["dataflow", "plan", "pipelines"]
"""The subject of a picture: the graph, where its work runs, or what the stages of its pipelines do when."""


class Compiled(Compilation):
    """A compiled program, as `rlgraph.compile` returns it, with methods for its plan, its pictures and its runs."""

    @classmethod
    def of(cls, found: Compilation) -> Self:
        """Return a compilation with all of these methods; results that it has already are not computed again."""
        compiled = object.__new__(cls)
        compiled.__dict__.update(found.__dict__)
        return compiled

    @property
    def graph(self) -> Graph:
        """Return the graph of the main step after the last pass."""
        return next(phase.graph for phase in self.program.phases if phase.name == "step")

    # Placement

    def explain(self, search_seconds: float | None = None) -> Explanation:
        """Return why the plan is as it is: what the time of a step goes to, what plans of other shapes lose, and what
        would help. It needs a cluster.

        `search_seconds` is for all its searches; if not given, as many as `compile` was given.
        """
        from rlgraph.explain.explain import explain

        check_arguments(search_seconds=search_seconds)
        return explain(self, search_seconds)

    def what_if(self, sweep: str, search_seconds: float | None = None) -> Sweep:
        """Return the best plan for each value of a sweep such as `devices=16,32,64`. It needs a cluster.

        `search_seconds` is for all its searches; if not given, as many as `compile` was given.
        """
        from rlgraph.explain.whatif import what_if

        check_arguments(sweep=sweep, search_seconds=search_seconds)
        return what_if(self, sweep, search_seconds)

    def plan_json(self, beside: str | Path = ".") -> str:
        """Return the text of the plan file, which `rlgraph.load_plan` reads: program, plan and their sources.

        `beside` is the folder that the file will be in; the paths in it begin there.
        """
        from rlgraph.runs.planfiles.file import plan_document

        check_arguments(beside=beside)
        return plan_document(self, Path(beside))

    def transfers(self) -> str:
        """Return as text what is transferred between the groups of the plan: weights after they changed, and rows."""
        from rlgraph.explain.transfers import transfers_text

        return transfers_text(self.program, self.placed)

    def to_latex(self) -> str:
        """Return what the program computes as formulas in LaTeX: an `aligned` block for each phase, below comments that
        say what each index counts."""
        from rlgraph.viz.latex import latex

        return latex(self.stages[0].program)

    # Pictures

    def lanes(self) -> Lanes:
        """Return the plan as data for a picture. Raise ProgramError if there is no plan."""
        from rlgraph.explain.lanes import plan_lanes

        return plan_lanes(self)

    def _kind(self, picture: Picture | None) -> Picture:
        return picture or ("plan" if self.planned else "dataflow")

    def to_dot(self, picture: Picture | None = None) -> str:
        """Return a picture as Graphviz text.

        `picture` is the dataflow or the plan; if not given, the plan where there is a cluster, a schedule or a plan
        file. Raise UsageMistake for pipelines, whose picture is no graph.
        """
        from rlgraph.viz import dot, lanes_dot

        check_arguments(picture=picture)
        if picture == "pipelines":
            raise wrong_argument("picture", "of a graph here: pipelines have no DOT text", picture)
        return dot.to_dot(self.program) if self._kind(picture) == "dataflow" else lanes_dot.to_dot(self.lanes())

    def to_svg(self, prefix: str = "", picture: Picture | None = None, *, embed: bool = True) -> str:
        """Return a picture as SVG.

        - `prefix`: the beginning of its ids; pictures on one page need different ones.
        - `picture`: as for `to_dot`, or the pipelines, stage by stage.
        - `embed`: whether the fonts are in it.
        """
        from rlgraph.viz import lanes_svg, svg
        from rlgraph.viz.svg_elements import with_fonts

        check_arguments(prefix=prefix, picture=picture, embed=embed)
        if picture == "pipelines":
            drawn = self._pipelines(prefix, True)
            return with_fonts(drawn) if embed else drawn
        if self._kind(picture) == "dataflow":
            return svg.to_svg(self.program, prefix, embed=embed)
        return lanes_svg.to_svg(self.lanes(), prefix, embed=embed)

    def _pipelines(self, prefix: str, always: bool) -> str:
        from rlgraph.explain.pipelines import pipelines_svg

        return pipelines_svg(self, f"{prefix}svg", always)

    def to_png(self, path: str | Path | None = None, picture: Picture | None = None) -> bytes:
        """Return a picture as PNG, and write it to `path` if that is given; `picture` is as for `to_svg`."""
        from rlgraph.viz.png import svg_to_png

        check_arguments(path=path)
        try:
            return svg_to_png(self.to_svg(picture=picture, embed=False), path=path)
        except OSError as error:
            message = f"the picture `{path}` cannot be written: {failure_reason(error)}"
            raise UsageMistake(Diagnostic("E0963", message, NO_SPAN, "give another path")) from None

    def to_html(self, picture: Picture | None = None) -> str:
        """Return one self-contained page with the picture after every pass, that of the plan, those of its step by time
        where that is predicted, and that of its pipelines, if it has any.

        `picture` is the one shown first, which is added to a page that lacks it.
        """
        from rlgraph.explain.time_plan import predicted_step, time_plan
        from rlgraph.viz.html import to_html

        check_arguments(picture=picture)
        kind = self._kind(picture)
        plan = self.lanes() if self.planned or kind == "plan" else None
        charts = self._pipelines("s-", kind == "pipelines") if self.planned or kind == "pipelines" else ""
        stages = [(stage.name, stage.program) for stage in reversed(self.stages)]
        step = predicted_step(self) if plan is not None else None
        time, timeline = (time_plan(step), step.to_svg()) if step is not None else (None, "")
        return to_html(stages, self.source, plan, kind, charts, time, timeline)

    def to_json(self) -> dict[str, Any]:
        """Return the graph as plain data."""
        return to_plain_data(self.program)

    def show(self, picture: Picture | None = None) -> None:
        """Show the picture in a notebook, and print the graph as text elsewhere; `picture` is as for `to_svg`."""
        check_arguments(picture=picture)
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
            sys.modules["IPython"].display.display(self._shown(picture), raw=True)
        else:
            print(self.text(), end="")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._shown(None)

    def _shown(self, picture: Picture | None) -> dict[str, str]:
        # Pictures on one page must not share ids, not even with those of an earlier session. A browser takes the HTML,
        # which alone contains the fonts.
        from rlgraph.viz.svg_elements import with_fonts

        prefix = f"rlgraph{uuid4().hex[:12]}-"
        svg = self.to_svg(prefix, picture, embed=False)
        scrolled = f'<div style="overflow: auto; max-height: 80vh">{with_fonts(svg)}</div>'
        return {"image/svg+xml": svg, "text/html": scrolled, "text/plain": summary_text(self)}

    # Running

    def run(
        self,
        steps: int = 100,
        *,
        seed: int = 0,
        out: str | Path | None = None,
        overwrite: bool = False,
        device: str | None = None,
        threads: int | None = None,
        block: int | None = None,
        token_budget: int | None = None,
        backend: str = LOCAL.name,
        address: str | None = None,
        debug: bool = False,
        timeout: float = 1800.0,
        record: str | Path | None = None,
        replay: str | Path | None = None,
        trace: str | Path | None = None,
        on_nonfinite: Literal["stop", "skip"] | None = None,
        save_every: int | str | None = None,
        keep: int | None = None,
        keep_best: str | None = None,
        keep_samples: int | None = None,
        show_samples: int = 0,
        track: Sequence[str] = (),
        track_model: bool = False,
        max_restarts: int = RESTARTS,
        verify_weights: int = VERIFY_WEIGHTS,
        resume: str | Path | None = None,
        changed: bool = False,
        progress: bool = True,
        on_event: Read | None = None,
    ) -> Run:
        """Run the phases before the main step, then the main step `steps` times.

        - `seed`: of everything that is random.
        - `out`: a folder, new or empty, for metrics and trained models; if not given, nothing is written.
        - `overwrite`: `out` may hold an earlier run, which is removed.
        - `device`: of the models with `local`, as torch names it ("cpu", "cuda:1"); if not given, a GPU where there is
          one. On it models are bfloat16 whose dtype neither the program nor a cluster says. With `ray`,
          "hard:8x80GB" is a CPU that refuses what eight GPUs of so much memory would.
        - `threads`: cores to use; all if not given.
        - `block`: rows of its unit that every node works on at a time, in place of what the schedule streams.
        - `token_budget`: padded tokens of a micro-batch at most.
        - `backend`: `local` is this process, `ray` the processes of the plan.
        - `address`: of a Ray cluster; if not given, one is started on this machine.
        - `debug`: the processes of Ray are objects in this process, so that breakpoints work.
        - `timeout`: seconds after which a process that does not answer is given up.
        - `record`: a folder, new or empty, for all that is sampled.
        - `replay`: such a folder, or that of a recorded run, whose rows take the place of sampling.
        - `trace`: a file for a timeline that ui.perfetto.dev shows.
        - `on_nonfinite`: where a gradient is NaN or infinite, "stop" ends the run (so does None), "skip" leaves out the
          update and reports how many.
        - `save_every`: a checkpoint in `out` after so many steps (20) or so much time ("10m", "2h"), at the end, and
          where the run is interrupted.
        - `keep`: so many of the checkpoints stay, the newest; 2 if not given.
        - `keep_best`: so does the one with the highest value of this metric ("kl:min": the lowest).
        - `keep_samples`: so many rows of a step are kept in `out`, the best and the worst among them; 32 if not given.
        - `show_samples`: so many of them are shown every so often.
        - `track`: trackers to which the run is sent while it goes on ("wandb", "mlflow", "trackio", "tensorboard"); it
          needs `out`.
        - `track_model`: so are the trained models.
        - `max_restarts`: how often a run that is saved goes back to its last checkpoint where it has lost a process.
          Any run on Ray replaces processes that only sample, so often.
        - `verify_weights`: after the first of so many transfers of the same weights both ends are compared, with the
          backend `ray`; 0 never does.
        - `resume`: the folder of a run that was saved; it goes on there to `steps` steps, with its seed. What is None
          is as it was there.
        - `changed`: the program, or files that it takes, may be others than were saved.
        - `progress`: whether a bar or lines on stderr show the run.
        - `on_event`: a function that is called with every event, one after the other: what works, steps with metrics
          and samples, checkpoints, warnings (`event.kind`, `event.to_json()`). The run waits for it; if it raises, the
          run says so (`notes` of the result) and goes on without it.

        None of these changes what is computed, but for `seed`, `replay`, `on_nonfinite`, `changed` and the rounding of
        a device.

        Raise ProgramError for what cannot be opened, RunError for what fails on the way, Interrupted on
        Ctrl-C; in the last two cases the trained models are in `out`.
        """
        from rlgraph.runs.run import run

        check_arguments(out=out, overwrite=overwrite, backend=backend, address=address, debug=debug, record=record)
        check_arguments(replay=replay, trace=trace, keep_best=keep_best, track=track, track_model=track_model)
        check_arguments(resume=resume, changed=changed, progress=progress)
        paths = (record, replay, trace, resume)
        record, replay, trace, resume = (None if path is None else Path(path) for path in paths)
        options = RunOptions(
            steps,
            seed,
            threads,
            block,
            token_budget,
            backend,
            address,
            debug,
            record=record,
            replay=replay,
            trace=trace,
            device=device,
            timeout=timeout,
            on_nonfinite=on_nonfinite,
            save_every=None if save_every is None else str(save_every),
            keep=keep,
            keep_best=keep_best,
            keep_samples=keep_samples,
            show_samples=show_samples,
            track=(track,) if isinstance(track, str) else tuple(track),
            track_model=track_model,
            restarts=max_restarts,
            verify_weights=verify_weights,
            resume=resume,
            changed=changed,
        )
        return run(self, options, out, overwrite, progress, on_event)
