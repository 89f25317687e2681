"""Pipeline-parallel schedules: orders of passes, exact times, bounds, and jobs."""
