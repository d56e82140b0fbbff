"""From a node to orders for the group that has it, and back to results: who works on which rows and weights."""
