"""Drawing for all papers: one style, one legend, one grid, one mean with its interval. Functions draw into the Axes that
they are given; only notebooks save."""
