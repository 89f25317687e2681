"""Read Kineto profiles, the Chrome traces of `torch.profiler`, one file per rank."""
