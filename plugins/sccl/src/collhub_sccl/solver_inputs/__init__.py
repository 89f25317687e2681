"""What TACCL's solver is fed with: profiles of nodes, and sketches of how to search on them."""
