"""Workloads from Nsight Systems: kernels, launches, and ranges of NCCL of `nsys export`."""
