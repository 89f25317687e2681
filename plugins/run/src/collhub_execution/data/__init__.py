"""Data of a run: element types, inputs with known results, memory and where records touch it."""
