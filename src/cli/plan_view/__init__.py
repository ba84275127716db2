"""Plans as text, a module for each part of them."""
