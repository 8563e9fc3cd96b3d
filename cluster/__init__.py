"""What is there: probing a node, starting Ray, spawning and supervising a draft/target pair."""
