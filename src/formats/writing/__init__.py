"""The parts of grammars: one module for each way of writing arguments."""
