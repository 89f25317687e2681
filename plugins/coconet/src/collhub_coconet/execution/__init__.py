"""Execution of flat programs on real arrays, node by node, in any order that they allow."""
