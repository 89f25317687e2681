"""Networks of clusters as their tools describe them."""
