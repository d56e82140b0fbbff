"""What operations do in the process that has the rows and the models: the only one of a run, or one of a group's."""
