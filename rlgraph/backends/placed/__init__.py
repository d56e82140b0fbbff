"""The backend of a plan: which group does a node's work, on which rows and with what weights. A transport carries that
to the groups, and its results back."""
