"""Turns the logits of a batch into one token for each row, and into log-probabilities."""
