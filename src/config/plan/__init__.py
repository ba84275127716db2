"""Planning a deployment: does it fit, on which device, and what would make it fit. No torch; no weights are read."""
