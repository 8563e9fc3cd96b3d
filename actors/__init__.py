"""What runs inside the two actors: checkpoints, networks, sampling, the wire, the draft side, the target side."""
