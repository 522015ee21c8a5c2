"""The audit of flows: their runs read back from records, and what many runs come to."""
