"""Guards in a graph: how nodes ask them and carry out their decisions; only here is LangGraph."""
