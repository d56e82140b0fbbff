"""From an operation to its work, in the process that has the rows and the models."""
