"""Inputs of TACCL's solver: profiles of nodes, and sketches that guide the search."""
