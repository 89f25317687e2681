"""Lower bounds on the time of a collective, and the cuts that prove them."""
