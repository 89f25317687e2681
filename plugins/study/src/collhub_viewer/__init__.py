"""Pages that show runs, jobs, networks and comparisons in a browser, in one file each."""
