"""NCCL and RCCL for Collective Hub; `plugin` lists the readers, writers and checks."""
