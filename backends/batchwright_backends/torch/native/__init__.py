"""Functions in C++ for the CPU, built at first use where a compiler is there."""
