"""Compiles a program with its settings into what runs: the graph after every rewrite, and the plan."""
