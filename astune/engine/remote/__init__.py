"""Engines behind HTTP: servers that return tokens, endpoints that return text, and how servers get new weights."""
