"""The page of `rlgraph watch`: what runs have written so far, thinned out, served on this machine or as one file."""
