"""One module for each writing library, run in an environment of its own: `python -m tools.writers.recipes.NAME`.

It quantises `record.BASE` into the folder that `record.target` names, reads it again, and ends with `record.record`.
"""
