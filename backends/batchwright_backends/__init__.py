"""First-party backends; heavy imports only inside the backend asked for."""
