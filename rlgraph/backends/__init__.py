"""From a graph and its plan to metrics and trained weights: the executor, and who does the work of nodes."""
