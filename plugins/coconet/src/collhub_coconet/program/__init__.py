"""Programs: tensors, operations, typed graphs, and their construction in Python."""
