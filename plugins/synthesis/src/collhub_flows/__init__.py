"""All-to-all, scatter and gather by optimal multicommodity flows for Collective Hub."""
