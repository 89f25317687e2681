"""Commands on workloads: entire jobs instead of single collectives."""
