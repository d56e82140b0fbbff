"""rlgraph compiles RLHF algorithms: a program that reads like its paper's pseudo-code becomes a run."""
