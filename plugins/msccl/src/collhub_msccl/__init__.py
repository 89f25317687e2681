"""MSCCL-IR XML for Collective Hub; `plugin` lists the readers, writers and checks."""
