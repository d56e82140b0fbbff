"""Schedules of trainings that share the stages of one pipeline: lists that say for each stage what it does when.

[`problem`](problem.py) is what is to be scheduled, [`timetable`](timetable.py) what follows from lists,
[`published_schedules`](published_schedules.py) has the schedules of one model, [`bounds`](bounds.py) what no schedule
can beat, [`dispatch`](dispatch.py) and [`exact`](exact.py) are two ways to find schedules, [`fuse`](fuse.py) uses both.
"""
