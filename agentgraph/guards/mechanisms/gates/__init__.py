"""Gates before and after a stage: schema, policy, invariants and grounding."""
