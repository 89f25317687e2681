"""From MSCCL-IR XML to an algorithm: scan, check, lower to plain steps, add true dependencies."""
