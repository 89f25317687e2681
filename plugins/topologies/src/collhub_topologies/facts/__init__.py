"""What can be said of a network exactly: its facts, and whether its NPUs reach one another."""
