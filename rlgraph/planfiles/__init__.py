"""Plan files: a program and the plan of where it runs, as a document that people read, edit and compare."""
