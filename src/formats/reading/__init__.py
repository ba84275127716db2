"""Readers of calls: one for each style, as generators that pause where the text ends."""
