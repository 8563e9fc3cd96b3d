"""The torch networks: decoder layers, target, trunk, head. They know tensors, not requests."""
