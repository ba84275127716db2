"""`engine bench`: measures the speed of a deployment or of any server."""
