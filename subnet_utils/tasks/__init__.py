"""What is learned: pure functions from (specification, seed) to data."""
