"""Tensor mathematics of a program as torch code."""
