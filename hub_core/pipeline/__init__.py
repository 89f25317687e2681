"""From what a user names to models and results: the only caller of plugins' work."""
