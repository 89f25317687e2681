"""From a topology to a document that gives the same topology back."""
