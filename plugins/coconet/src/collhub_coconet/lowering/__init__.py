"""Lowering of typed programs to workloads, and to flat graphs of all messages."""
