"""A math agent on GSM8K."""
