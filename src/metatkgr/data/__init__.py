"""Facts, where they come from, and who may see which of them when."""
