"""One rank: its tasks, and the engine that runs them on any transport."""
