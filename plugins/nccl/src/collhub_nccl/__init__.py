"""NCCL and RCCL for Collective Hub; see `plugin` for what it offers."""
