"""Memory accesses of steps, and the data dependencies that follow from them."""
