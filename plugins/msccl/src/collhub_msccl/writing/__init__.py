"""From an algorithm to MSCCL-IR XML for one runtime: thread blocks, channels, order and waits."""
