"""Plan files: documents of a program and its plan that people read, edit and compare, and their reader."""
