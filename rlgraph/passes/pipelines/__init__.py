"""From trainings that share the stages of one pipeline to lists that say who works when.

[`problem`](problem.py) is what is to be scheduled, [`timetable`](timetable.py) what follows from lists,
[`published`](published.py) has some of one model, [`bounds`](bounds.py) what no lists can beat,
[`dispatch`](dispatch.py) and [`exact`](exact.py) are two ways to find some, [`fuse`](fuse.py) both.
"""
