"""Times of algorithms on real machines: an event simulator with constants of a profile."""
