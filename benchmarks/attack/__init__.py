"""Attacks on a real server, on the loopback interface only: see docs/design/attacks.md."""
