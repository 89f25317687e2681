"""Schedules on the links of a network: when transfers start, how they are timed, and an independent check of them."""
