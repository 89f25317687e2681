"""Search for the fastest algorithm: settings, candidate forms, chunk counts and seeds."""
