"""From transfers to rows of a step table, one file a concern."""
