"""The boundary between the hub and plugins: discovery, compatibility, options, registry."""
