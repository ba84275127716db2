"""The flags of verbs: one record a verb, whose fields are declared as Typer reads them.

A verb passes its record on to the module that does the work. Imports nothing that is slow.
"""
