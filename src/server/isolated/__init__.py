"""Work on what clients and model folders send, in processes of their own."""
