"""A file of requests through the app of a deployment, with no socket between."""
