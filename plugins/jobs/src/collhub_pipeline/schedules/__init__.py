"""One schedule a file: in which order a stage runs its passes."""
