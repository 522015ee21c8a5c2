"""What an input may spend: budget and account, prices, estimates, and the spend of an input."""
