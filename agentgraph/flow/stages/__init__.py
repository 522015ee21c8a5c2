"""What a stage of a flow runs with: its guards, and how it fails."""
