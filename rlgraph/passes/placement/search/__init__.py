"""From tasks and a cluster to the fastest plan: who shares devices, how many, and how each model is split."""
