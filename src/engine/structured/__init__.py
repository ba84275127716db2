"""Structured outputs: grammars that the tokens of an answer obey, and the end of its reasoning. No torch."""
