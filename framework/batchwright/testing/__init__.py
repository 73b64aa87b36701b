"""For those who write policies and plugins: the executable specification of a step."""
