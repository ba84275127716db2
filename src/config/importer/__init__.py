"""Launches of other serving engines, read into the manifest that says the same.

shell.py text into words; launch.py words into program, options and environment; vllm.py, sglang.py, llama_cpp.py what
their options are here; draft.py what can stand in a manifest and what cannot; manifest.py the text.
"""
