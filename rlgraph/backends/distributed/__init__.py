"""This package runs a graph on the groups of a plan: from a node to requests for its group, and back to results."""
