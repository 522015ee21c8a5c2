"""What an input has used and done: its account, its audit trail, and where both are stored."""
