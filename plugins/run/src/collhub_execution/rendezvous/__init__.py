"""Whether and in which order a program runs where a send ends only when it is received."""
