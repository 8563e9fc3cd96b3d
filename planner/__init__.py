"""Pure decisions: no torch, no Ray, no clock, no environment."""
