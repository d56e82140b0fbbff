"""From a run to files on disk between two steps, and from them back to the run."""
