"""Graphs become better graphs: each pass is a function from program to program in a file of its own name."""
