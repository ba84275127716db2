"""Offline: batches of prompts without a server, `LLM`."""
