"""Read machines described by NCCL, RCCL and nvidia-smi as topologies of the hub."""
