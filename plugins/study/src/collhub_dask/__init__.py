"""Sweeps of Collective Hub on a Dask cluster."""
