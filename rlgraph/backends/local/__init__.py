"""The backend of this process. It defines what a program means: every other backend is compared with it."""
