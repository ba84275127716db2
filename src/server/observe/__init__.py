"""What the server reports of its requests: metrics and traces."""
