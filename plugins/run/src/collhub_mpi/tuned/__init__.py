"""Files by which MPICH, Open MPI and UCC choose among their own algorithms."""
