"""UnitAccesses of steps to the same memory, and the data dependencies that follow from them."""
