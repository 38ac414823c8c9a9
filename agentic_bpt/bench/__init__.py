"""Side-by-side measurements, each in one run."""
