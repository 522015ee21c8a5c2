"""Static analysis of rules, without running them: findings, the floor graph, a diagram."""
