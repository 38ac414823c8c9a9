"""Acting in an environment and what the returns say."""
