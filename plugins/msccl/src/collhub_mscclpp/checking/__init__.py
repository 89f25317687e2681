"""Whether the executor loads a plan, and runs it rightly launch after launch."""
