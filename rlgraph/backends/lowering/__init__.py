"""This package lowers the tensor mathematics of a graph to torch code."""
