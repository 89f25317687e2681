"""Entry point of the distribution: no offers yet, its functions are for Python."""

COLLHUB_PLUGIN_API = (1, 0)
