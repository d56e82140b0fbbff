"""The graph that every stage reads and makes, and the plan: what a program is from its check to its run."""
