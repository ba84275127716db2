"""Defaults of arguments that verbs and their declarations share. Imports nothing."""

DEFAULT_URL = "http://localhost:8000/v1"  # of a server with the default options
METRICS_HOST, METRICS_PORT = "0.0.0.0", 8000  # of `engine run-batch --enable-metrics`
