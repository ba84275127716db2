"""The C++ kernels for CPUs: sources, the features they need, and the library that is built of them on first use."""
