"""Schedules of TE-CCL (Liu et al., SIGCOMM 2024) as algorithms of the hub."""
