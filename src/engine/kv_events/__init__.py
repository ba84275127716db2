"""Events about the KV cache: what they say, and how they reach those who subscribe."""
