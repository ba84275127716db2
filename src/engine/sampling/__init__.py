"""From the logits of a batch to one token for each row, and to log-probabilities."""
