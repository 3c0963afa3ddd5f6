"""The studies of *Instilling Inductive Biases with Subnetworks*: arithmetic, and the shape bias of image models."""
