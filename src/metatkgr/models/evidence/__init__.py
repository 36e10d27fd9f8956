"""The evidence model: candidate generation, then re-ranking with a small ensemble."""
