"""The audit trail: records of what happens in a run, where they go, and what they add up to."""
