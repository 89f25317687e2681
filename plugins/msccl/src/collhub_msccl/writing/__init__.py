"""Write an algorithm as MSCCL-IR XML for one runtime: thread blocks, channels, order and waits."""
