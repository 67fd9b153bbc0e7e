"""Stands in for one vLLM engine: its scheduler, its step times and its HTTP surface."""
