"""Rules as a JSON document, and back."""
