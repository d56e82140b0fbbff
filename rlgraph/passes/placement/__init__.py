"""Makes a plan of a graph and a schedule; what the schedule leaves open is searched for."""
