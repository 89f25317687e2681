"""Programs as JSON documents, as text, in workloads, and in Python files."""
