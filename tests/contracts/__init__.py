"""Each port's promises, the same tests on both twins."""
