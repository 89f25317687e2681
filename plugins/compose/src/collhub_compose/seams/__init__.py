"""Where one algorithm follows another: what both promise, where the data lie, who waits."""
