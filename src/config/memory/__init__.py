"""What the memory of a device is for: one computation, of which a start decides and a plan shows. No torch."""
