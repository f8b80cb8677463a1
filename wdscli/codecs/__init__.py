"""Payloads <-> values by field name: decoders, encoders, and the limits of both. It must not know samples or sets."""
