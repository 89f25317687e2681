"""MPI for Collective Hub: run algorithms as point-to-point messages of mpi4py."""
