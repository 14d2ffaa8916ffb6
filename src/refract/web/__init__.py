"""The dashboard: static files that speak HTTP only."""
