"""A graph becomes a run: the executor, the loops, and the backends that do the work of single nodes."""
