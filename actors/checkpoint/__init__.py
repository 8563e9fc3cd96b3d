"""Readers of target and head checkpoints, and the check that a head belongs to a target."""
