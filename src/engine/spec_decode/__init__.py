"""Drafts: tokens that a step verifies together with the last known one. What the scheduler asks: core/drafting.py."""
