"""Write algorithms as execution plans."""
