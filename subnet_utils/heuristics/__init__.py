"""The study of *The Heuristic Core*: structured pruning, and the heads that subnetworks share."""
