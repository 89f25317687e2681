"""Read execution plans as algorithms of the hub."""
