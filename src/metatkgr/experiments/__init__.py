"""Tables and figures: from the paper, and of any other dataset or run."""
