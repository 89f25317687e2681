"""The seam between two algorithms in sequence: contracts, placement of data, dependencies."""
