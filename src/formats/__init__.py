"""Formats in which model families write reasoning and tool calls.

One declaration for each (declarations/), from which the parser of answers, the grammar of generation and the golden
tests are made. Needs no torch, no server and no engine.
"""
