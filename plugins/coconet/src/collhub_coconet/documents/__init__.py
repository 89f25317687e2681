"""Programs as JSON documents, as text, in workload nodes, and in Python files."""
