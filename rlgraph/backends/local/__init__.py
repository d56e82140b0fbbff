"""This package runs a graph in this process; every other backend is compared with it."""
