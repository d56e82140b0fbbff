"""From a plan to its step in virtual time: the executor of a run, with stand-ins for rows."""
