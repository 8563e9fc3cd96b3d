"""Transports that carry wire frames between target and draft."""
