"""GOAL schedules for Collective Hub; `plugin` lists the reader and the writers."""
