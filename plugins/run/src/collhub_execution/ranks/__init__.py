"""One rank at a time: what it has to do, and the engine that does it on any transport."""
