"""Schedules on the level of hosts: bounds, orders, exact schedules and splitting."""
