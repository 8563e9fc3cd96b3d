"""How a person gets at it: the command line, text in and text out, the embedded pair."""
