"""Rewrites of a graph into a better one that computes the same, one in each file."""
