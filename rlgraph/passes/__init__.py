"""From a typed graph to a plan: rewrites of the graph, what things cost, and who works where."""
