"""From an algorithm to MSCCL-IR XML: thread blocks, channels, order, waits, scratch and header for one runtime."""
