"""Networks that learn several functions: how they and masks on each function are trained, and what masks share."""
