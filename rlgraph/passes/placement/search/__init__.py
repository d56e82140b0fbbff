"""Searches for the fastest plan of some tasks on a cluster: who shares devices, how many, and how each model is
split."""
