"""Plans among which an application chooses by size."""
