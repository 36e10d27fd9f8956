"""What several models share: scores, neighbourhoods, few-shot tasks, losses."""
