"""What can be read of the clicks of links: counts, shares, visitors, and the clicks themselves."""
