"""Runs `python -m rlgraph`."""

from rlgraph.cli import main

main()
