"""Networks of several switches, machines that are sold, and what can be said of any network."""
