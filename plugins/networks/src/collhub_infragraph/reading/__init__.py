"""Convert a document to a topology: expansion, contraction, bandwidths."""
