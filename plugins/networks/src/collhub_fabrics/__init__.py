"""Networks of clusters as described by their tools."""
