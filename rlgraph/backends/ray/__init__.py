"""Runs requests on Ray actors, one for each rank; the controller sees references, never rows."""
