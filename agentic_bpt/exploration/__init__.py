"""Collectors that write episodes as ExoRL writes them."""
