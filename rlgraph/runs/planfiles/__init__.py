"""From a program and its plan to a document that people read, edit and compare, and back."""
