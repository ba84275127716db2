"""Launches of other serving engines, read into the manifest that says the same.

shell.py text into words; launch.py words into program, options and environment; vllm.py, sglang.py, llama_cpp.py,
tgi.py and ollama.py what their options are called here; draft.py decides what a manifest can contain; manifest.py
writes the text.
"""
