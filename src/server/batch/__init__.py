"""Runs a file of requests through the app of a deployment, without a socket."""
