"""Drawing for all papers: one style, one legend, one grid, one mean with its interval. Only notebooks save."""
