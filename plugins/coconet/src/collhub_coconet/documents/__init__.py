"""Programs as JSON documents, and as text."""
