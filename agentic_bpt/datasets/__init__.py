"""Episodes in, chains of trajectories out: files, relabelling, store, sampling; never jax."""
