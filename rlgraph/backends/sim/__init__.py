"""This package simulates steps of a plan in virtual time: with a run's executor, and fake rows."""
