"""Networks of several switches, commercial machines, and facts about any network."""
