"""Sweeps: the same program with several values of its parameters, a run for every combination of them."""
