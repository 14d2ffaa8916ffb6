"""Each service through its face, on the embedded ports."""
