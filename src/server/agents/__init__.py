"""What coding agents need besides the API: descriptions of the model, and prompts that keep their prefix."""
