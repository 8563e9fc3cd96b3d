"""Head distillation: the target writes text, a head learns to draft it, its confidence is calibrated."""
