"""Where a program's work runs: a schedule becomes a plan, and the search finds the best one for a cluster."""
