"""`python -m agentgraph` is the command line."""

from agentgraph.cli import main

if __name__ == "__main__":
    main()
