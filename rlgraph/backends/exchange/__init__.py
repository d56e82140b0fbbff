"""This package sends weights from one process to another, by the transfers of a plan."""
