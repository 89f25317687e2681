"""MSCCL++ execution plans for Collective Hub."""
