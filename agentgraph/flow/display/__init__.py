"""How a flow is drawn."""
