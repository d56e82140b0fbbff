"""From a compiled program to a run and what it leaves behind: a folder, metrics, models, a timeline."""
