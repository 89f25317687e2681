"""What this distribution offers to the hub."""

COLLHUB_PLUGIN_API = (1, 0)
