"""Programs: tensors, operations, the checked graph, and how Python writes one."""
