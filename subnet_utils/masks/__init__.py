"""How a subnetwork is found, and what can be done with one."""
