"""What an owner may read of links: one of them, or a page."""
