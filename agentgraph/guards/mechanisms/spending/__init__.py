"""What an input may spend: budgets, prices, estimates and what was spent."""
