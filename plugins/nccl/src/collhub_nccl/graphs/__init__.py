"""Rings within a node, recognised in algorithms and written as XML for `NCCL_GRAPH_FILE`."""
