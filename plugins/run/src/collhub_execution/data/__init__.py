"""Data of a run: element types, inputs with known results, memory, and the accesses of records."""
