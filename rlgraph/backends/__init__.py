"""This package runs a graph by its plan: the executor says when nodes fire, backends and workers do their work."""
