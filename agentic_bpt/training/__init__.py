"""The training loop and its parts; it knows no model and no environment."""
