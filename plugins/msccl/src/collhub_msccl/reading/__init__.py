"""From MSCCL-IR XML to an algorithm: scanned, checked, lowered to plain steps, with their true dependencies."""
