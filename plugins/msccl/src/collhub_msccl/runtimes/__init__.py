"""Limits and load rules of the runtimes of MSCCL-IR, and a check whether they load a file."""
