"""Kineto profiles, the Chrome traces of `torch.profiler`, one file a rank."""
