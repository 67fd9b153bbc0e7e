"""Serves the simulated engine's paths, one module per family of surfaces."""
