"""Reads descriptions of clusters into devices and links, and has the table of known devices."""
