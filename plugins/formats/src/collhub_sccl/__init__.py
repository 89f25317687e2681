"""Reader and writer for algorithms of SCCL, msccl-tools and TACCL in JSON."""
