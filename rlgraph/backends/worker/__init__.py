"""This package does the work of operations in the process that has the rows and the models."""
