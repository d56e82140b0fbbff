"""Trackers: services and folders to which a run's configuration, metrics, samples, pictures and models go."""
