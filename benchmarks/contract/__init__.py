"""What frameworks promise of a run that is killed, forked, damaged or answered by many at once."""
