"""Whole jobs for Collective Hub: Chakra workload traces, read, written and checked."""
