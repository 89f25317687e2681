"""MSCCL-IR XML for Collective Hub; see `plugin` for what it offers."""
