"""Whether outputs are what the collective promises, and how fast that was."""
