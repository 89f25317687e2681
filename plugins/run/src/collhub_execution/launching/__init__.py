"""Executors that let a program start one process a rank on this machine."""
