"""Result files in, tables and pictures out; never imports jax."""
