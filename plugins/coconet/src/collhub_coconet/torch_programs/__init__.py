"""Programs of PyTorch: read captured graphs as typed programs, write programs as Python modules."""
