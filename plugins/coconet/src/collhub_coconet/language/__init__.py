"""Programs of tensors in Python: files that are executed, in a process of their own."""
