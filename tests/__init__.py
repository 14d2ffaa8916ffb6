"""The tests of Refract."""
