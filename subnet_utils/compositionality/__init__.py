"""The study of *Break It Down*: base models, masks, ablations, their controls, and the tables."""
