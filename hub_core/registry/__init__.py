"""The plugin border: contract, hooks, discovery, compatibility, registry."""
