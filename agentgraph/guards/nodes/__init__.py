"""Guards in a graph: what their decisions do at its nodes. Only this folder knows LangGraph."""
