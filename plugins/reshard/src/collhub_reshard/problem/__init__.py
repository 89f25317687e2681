"""Tensors, meshes and specs as users write them, and the unit tasks that follow."""
