"""What every request passes before its route: its id, its origin, and its method."""
