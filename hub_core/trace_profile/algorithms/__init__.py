"""Collective profile v1: the steps of an algorithm as nodes of execution traces, and back."""
