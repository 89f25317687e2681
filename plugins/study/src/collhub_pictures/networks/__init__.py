"""Networks as SVG pictures: positions of nodes, lines between them, colours, text."""
