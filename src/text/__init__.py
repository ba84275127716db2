"""Text: messages to a prompt, a prompt to token ids, token ids to text. Used by the server and by `LLM`."""
