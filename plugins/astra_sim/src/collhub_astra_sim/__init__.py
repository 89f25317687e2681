"""Plugin of Collective Hub."""
