"""JSON schemas of the documents and the Chakra messages."""
