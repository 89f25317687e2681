"""Convert a plan of messages to the steps of an algorithm."""
