"""Trainings that share the stages of one pipeline: who works when, as lists that say it for each stage.

[`problem`](problem.py) is what is to be scheduled, [`timetable`](timetable.py) what follows from lists,
[`bounds`](bounds.py) what no lists can beat, [`dispatch`](dispatch.py) and [`exact`](exact.py) two ways to find some,
[`fuse`](fuse.py) both.
"""
