"""All-reduce in one phase: every NPU gets the sum over a shortest-path tree of its own."""
