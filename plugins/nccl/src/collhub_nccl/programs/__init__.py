"""Write algorithms as folders with a program for NCCL, and check the tools to build them."""
