"""vLLM as a backend of the lab: its engine runs an arm, in a process of its own."""
