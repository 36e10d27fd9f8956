"""From scores to ranks, and from ranks to numbers one can trust."""
