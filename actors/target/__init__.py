"""The target side: requests in, rounds driven, committed token IDs out."""
