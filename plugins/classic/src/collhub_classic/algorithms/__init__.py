"""The algorithms, one a file: their plans of messages, and their costs."""
