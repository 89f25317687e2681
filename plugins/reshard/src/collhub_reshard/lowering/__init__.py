"""Schedules of hosts become messages of devices, and those an algorithm with its contract."""
