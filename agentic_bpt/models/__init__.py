"""From tokens to actions: the trajectory transformer and the MLP policy."""
