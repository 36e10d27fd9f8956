"""What speaks for an answer, weighed by what has been learned about such evidence."""
