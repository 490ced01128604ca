"""Seeded fuzzing of everything that reads what others wrote; `python -m tests.fuzz` runs it."""
