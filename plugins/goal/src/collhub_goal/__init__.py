"""GOAL schedules for Collective Hub; see `plugin` for what it offers."""
