"""`engine bench`: how fast a deployment, or any server, is."""
