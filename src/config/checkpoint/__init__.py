"""Weight files on disk: which ones a checkpoint has, and where in them each tensor lies. No weights are read here."""
