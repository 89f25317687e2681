"""What the runtimes of MSCCL-IR accept: their limits, and whether they would load a given file."""
