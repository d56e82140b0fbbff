"""Draws the picture of a graph, a plan or a step, as DOT, SVG, PNG, or one HTML page.

    captions   the texts on a box: titles, options, formulas, types
    scene      a program as boxes in boxes, ports and links; knows nothing of drawing
    layered    rows, order and places of boxes and lines; knows nothing of programs
    layout     a scene with places
    theme      colours and sizes
    svg png dot html   the four output formats: `to_svg`, `to_png`, `to_dot`, `to_html`
    lanes lanes_layout lanes_svg lanes_dot   the same for a plan: its content, its layout, and two output formats
    gantt      charts over time; `timeline` and `pipeline` make those of steps and of pipeline stages

The visual language:
- A coloured container is a model, and holds the operations that the model does there: blue a policy, green a
  critic, violet a reward model; a frozen model is paler and its border is broken. One model can have several
  containers: one in each frame where it works. `train` is a container of its model too.
- A grey frame is a loop. A value from outside enters it once, as a tab on its upper edge.
- Everything else stands outside containers: data, Python functions, tables, tensor mathematics.
  A `report` is a small tag for each metric, beside what the metric is made of.
- A line is a value, labelled with its type where it begins; a broken line is a model's weights or a state.
- An amber edge is a barrier: the box waits for its whole group or batch. The tooltip and the page say why.
"""
