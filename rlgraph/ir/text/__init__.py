"""Prints a graph as text that a person reads or as plain data, and parses that text."""
