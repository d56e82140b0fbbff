"""The simulator: a plan's step by the executor of a run, with stand-ins for rows and a clock that nobody waits for."""
