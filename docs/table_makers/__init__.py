"""What makes the tables of these pages: see ``docs/tables.py``."""
