"""Exact flows, cuts and packings of spanning trees; integers and fractions only, never tolerances."""
