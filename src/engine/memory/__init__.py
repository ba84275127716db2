"""Memory that is mapped from the system: of one process, or shared by several. No torch."""
