"""Processes of one model on several machines: how they are started, find each other, and notice the end of another."""
