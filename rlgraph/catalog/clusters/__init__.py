"""From what is said of a cluster to its devices and links, with the table of known devices."""
