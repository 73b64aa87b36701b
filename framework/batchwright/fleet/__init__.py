"""Fleets: several replicas of an engine behind a router, in virtual time."""
