"""The verbs of `engine`, by group: their arguments, and the module that does the work, imported when a verb runs."""
