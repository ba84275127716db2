"""Work on what clients and model folders send, in separate processes."""
