"""What algorithms use of their buffers, and how parts of these move."""
