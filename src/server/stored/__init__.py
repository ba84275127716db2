"""Stored responses of the Responses API: store.py keeps them, background.py generates without a waiting client."""
