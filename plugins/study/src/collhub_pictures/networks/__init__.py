"""Networks as pictures: where nodes stand, which lines join them, and the text of the picture."""
