"""Builders of topology texts such as `fat-tree:4` and `dgx1v`."""
