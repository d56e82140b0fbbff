"""An engine in a package of its own: a language model on one rank, as plainly as it can be written."""
