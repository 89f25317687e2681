"""The Chakra execution-trace codec, collective profile v1."""
