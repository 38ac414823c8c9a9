"""ExoRL's domains and tasks in dm_control and MuJoCo; never imports jax."""
