"""From the weights of one process to those of another, by the transfers of a plan."""
