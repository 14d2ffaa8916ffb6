"""What a link is, which destinations and codes it may have, and what may become of it."""
