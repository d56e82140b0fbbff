"""From a node and its rows to results, in this process: what every other backend is compared with."""
