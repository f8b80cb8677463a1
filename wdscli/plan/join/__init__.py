"""This package has the orders of several sets: joined by key, or taken in turn."""
