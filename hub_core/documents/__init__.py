"""The models as JSON documents."""
