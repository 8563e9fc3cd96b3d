"""The draft side: sessions rebuilt from token IDs, proposals out."""
