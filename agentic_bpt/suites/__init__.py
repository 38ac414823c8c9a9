"""Declared sets of experiments: their cells, how they are run, and what is reported of them."""
