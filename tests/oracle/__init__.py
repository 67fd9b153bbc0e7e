"""Compares the gateway's reading of bodies with vLLM's own code, where vLLM is installed."""
