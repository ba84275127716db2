"""How bytes arrive and leave: sockets, TLS, connections, and the limits that hold before a request is parsed."""
