"""What links needs from outside, implemented: pictures of codes, and who knows dangerous destinations."""
