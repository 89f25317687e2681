"""What a certificate of optimality says, for those who write one and those who check it."""
