"""The hot path and its slow twin: how a short link is followed, and how the click is kept."""
