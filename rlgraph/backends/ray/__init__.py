"""The backend of a cluster: a Ray actor for each rank of each group. The controller sees references and counts, never
rows."""
