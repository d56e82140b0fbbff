"""From a graph and a schedule to a plan; what the schedule leaves out is searched for."""
