"""Models that come with the package: data, no code."""
