"""Files with which MPICH, Open MPI and UCC select among their algorithms."""
