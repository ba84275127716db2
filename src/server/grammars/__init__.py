"""What requests want their answers to obey, as grammars of llguidance. Runs in isolated processes only."""
