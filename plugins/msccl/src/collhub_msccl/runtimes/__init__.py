"""Rules of the runtimes of MSCCL-IR: their limits, and a check whether they load a file."""
