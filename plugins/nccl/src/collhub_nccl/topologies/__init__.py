"""Machines as NCCL, RCCL and nvidia-smi describe them, read as topologies of the hub."""
