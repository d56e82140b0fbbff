"""From a program to what runs: the text and its settings, the graph after every pass, and the plan of where it runs."""
