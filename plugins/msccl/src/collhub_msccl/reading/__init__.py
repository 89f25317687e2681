"""Read MSCCL-IR XML: scan, check, lower to plain steps, add data dependencies between conflicting
accesses."""
