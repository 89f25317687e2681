"""Reader for schedules of TE-CCL (Liu et al., SIGCOMM 2024)."""
