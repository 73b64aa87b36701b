"""The routers that come with Batchwright, one a file."""
