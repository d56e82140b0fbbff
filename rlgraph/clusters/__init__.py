"""Clusters of devices: what they are, how they are said, and the table of devices that are known. No costs."""
