"""From a graph to a better graph that computes the same: a file for each rewrite."""
