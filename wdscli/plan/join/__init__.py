"""The orders of several sets: joined by key, or taken in turn."""
