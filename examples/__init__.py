"""Small real inputs that `collhub demo` and the documentation use."""
