"""Data of drawings: rows and times of runs, positions and shapes of the nodes of networks."""
