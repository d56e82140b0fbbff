"""What a plan costs: clusters and devices, the work of models, time, memory. No torch; nothing here runs anything."""
