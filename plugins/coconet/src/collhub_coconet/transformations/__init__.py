"""Transformations: a program in, an equal program with a record of legality out."""
