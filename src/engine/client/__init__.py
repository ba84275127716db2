"""The server's side of an engine, or of several: submit, stream, abort, and the state of the engine."""
