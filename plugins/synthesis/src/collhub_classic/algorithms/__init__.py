"""The algorithms: their plans of messages and their costs."""
