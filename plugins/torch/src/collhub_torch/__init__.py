"""PyTorch for Collective Hub: run algorithms as point-to-point messages of torch.distributed."""
