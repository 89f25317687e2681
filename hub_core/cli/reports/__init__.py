"""Reports of commands: their JSON objects and their texts."""
