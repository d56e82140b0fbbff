"""The intermediate representation: the graph and the plan that every stage from the checker to the run works on."""
