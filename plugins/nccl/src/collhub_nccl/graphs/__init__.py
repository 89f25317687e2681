"""Recognise rings within a node in algorithms, and write them as XML for `NCCL_GRAPH_FILE`."""
