"""Memory mapped from the operating system: private (`pages`), or shared by processes of a machine. No torch."""
