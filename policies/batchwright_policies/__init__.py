"""First-party policies, one a file."""
