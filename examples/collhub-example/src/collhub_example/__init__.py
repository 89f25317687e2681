"""Plugin of Collective Hub: the format example."""
