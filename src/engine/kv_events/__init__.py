"""Events about the blocks of the KV cache, for routers: `payloads` encodes them, `publisher` sends them over ZMQ."""
