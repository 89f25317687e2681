"""Folders of plans from which an application chooses by message size."""
