"""Execution order of a program on a transport where a send completes only when it is received."""
