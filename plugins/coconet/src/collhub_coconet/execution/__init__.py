"""Execution of flat programs on arrays, node by node, in any order that dependencies allow."""
