"""From a program and its settings to what runs: the graph after every rewrite, and the plan."""
