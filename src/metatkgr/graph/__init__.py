"""Fast look-ups over visible facts."""
