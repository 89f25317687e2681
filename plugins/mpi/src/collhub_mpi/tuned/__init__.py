"""Files by which Open MPI and UCC choose among their own algorithms."""
