"""Networks as the synthesizer sees them: links grouped by destination, arcs over switches, distances and symmetries."""
