"""Convert plans to algorithms: buffer layouts, steps and contracts."""
