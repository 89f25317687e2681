"""Pictures of wait-for graphs."""
