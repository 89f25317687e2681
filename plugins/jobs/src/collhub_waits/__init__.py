"""Find which ranks wait for which: operations of all ranks, their matching, the wait-for graph.

The operations come from dumps of a hung job, or from a workload that is executed until no rank can
continue. Import from the modules: this package imports nothing by itself.
"""
