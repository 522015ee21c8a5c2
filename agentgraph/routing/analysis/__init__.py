"""What can be said of rules without running them: faults, moves, and a diagram."""
