"""What an input may spend: the budget and its account, prices, estimates, and the whole input's."""
