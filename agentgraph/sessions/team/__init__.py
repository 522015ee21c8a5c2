"""A team's graph: who takes part in it, and what each of its speakers is run on."""
